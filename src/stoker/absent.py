"""What stands in for a task that is not there any more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .compat import DEFAULT_TASK_BACKEND_ALIAS
from .definition import Task
from .exceptions import UnknownTask


class AbsentTask(Task[..., Any]):
    """Stands in a result for a task that is not there any more: a name, and nothing to run."""

    __slots__ = ()

    def __post_init__(self) -> None:
        """There is nothing to check."""

    def __reduce__(self) -> Any:
        return absent_task, (self.module_path, self.backend)

    @property
    def name(self) -> str:
        return self.module_path.rpartition(".")[2]

    @property
    def module_path(self) -> str:
        return self.func.path  # type: ignore[attr-defined,no-any-return] # an _Absent


@dataclass(frozen=True, slots=True)
class _Absent:
    """The function that is not there."""

    path: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise UnknownTask(
            f"There is no task {self.path!r} here (any more), so it cannot be called."
        )


def absent_task(path: str, backend: str = DEFAULT_TASK_BACKEND_ALIAS) -> AbsentTask:
    """A stand-in for the task of that name. Never raises; calling it raises UnknownTask."""
    return AbsentTask(func=_Absent(path), backend=backend)
