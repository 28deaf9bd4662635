"""The tasks that may be enqueued from outside, by the names that they have there.

A task is here only because its module was imported: nobody outside can have one imported by naming
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .exceptions import InvalidTaskOption, UnknownTask

_exposed: dict[str, Any] = {}


def expose(task: Any) -> None:
    """Let this task be enqueued from outside, if it says so. What ``using()`` makes of a task
    changes nothing; a module that is loaded again does.

    Raises:
        InvalidTaskOption: another task has that name.
    """
    if not task.exposed:
        return
    name = exposed_name(task)
    known = _exposed.get(name)
    if known is not None and known.module_path != task.module_path:
        raise InvalidTaskOption(
            f"exposed={task.exposed!r}: {known.module_path} is exposed under that name already, so "
            f"give {task.module_path} another."
        )
    if known is None or known.func is not task.func:
        _exposed[name] = task


def exposed_name(task: Any) -> str:
    """How a task that is exposed is called outside."""
    return task.exposed if isinstance(task.exposed, str) else str(task.module_path)


def exposed_task(name: str) -> Any:
    """The task that is exposed under that name.

    Raises:
        UnknownTask: there is none, or none whose module was imported.
    """
    task = _exposed.get(name)
    if task is None:
        raise UnknownTask(f"No task is exposed as {name!r}. @task(exposed=True) exposes one.")
    return task


def exposed_tasks() -> Mapping[str, Any]:
    """Name -> task, by name."""
    return dict(sorted(_exposed.items()))
