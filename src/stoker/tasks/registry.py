"""Find tasks by the names in packages."""

from __future__ import annotations

import difflib
import logging
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

from django.apps import apps
from django.utils.module_loading import module_has_submodule

from stoker.compat import is_task
from stoker.exceptions import InvalidTaskOption, UnknownTask

logger = logging.getLogger("stoker")


def find_task(path: str) -> Any:
    """Return the task with that name, which may be a task of Stoker or a plain one of Django.

    Args:
        path: module and qualified name of the function, as in ``shop.tasks.send_welcome``.

    Raises:
        UnknownTask: the module cannot be imported or has no task of that name. The message says
            which of both. If an import failed, its error is the ``__cause__``.
    """
    return _find(path, import_module)


def named_task(path: str) -> Any:
    """Return the task with a name that a user wrote.

    Raises:
        UnknownTask: as ``find_task``. If the name does not exist, the message suggests a similar
            one.
    """
    return _find(path, import_module, _suggestion)


def imported_task(path: str) -> Any:
    """Return the task with that name if its module is imported already, otherwise None. Used where
    a module that hangs or ends its process when it is imported would stop the cluster."""
    try:
        return _find(path, _imported)
    except UnknownTask:
        return None


def _find(
    path: str, load: Callable[[str], ModuleType], advise: Callable[[str], str] = lambda path: ""
) -> Any:
    """Find a task.

    Args:
        load: the function that imports modules.
        advise: returns what to add to the message if the name does not exist.
    """
    module, names = _import(path, load, advise)
    owner: Any = module
    found: Any = module
    for name in names:
        owner = found
        found = vars(owner).get(name, _MISSING) if hasattr(owner, "__dict__") else _MISSING
        if found is _MISSING:
            break
    if is_task(found):
        return found
    renamed = _of_function(owner, path)
    if renamed is not None:
        return renamed
    if found is _MISSING:
        raise UnknownTask(
            f"There is no task {path!r}: {module.__name__} has no {'.'.join(names)!r}."
            f"{advise(path)}"
        )
    raise UnknownTask(
        f"{path!r} is not a task but a {type(found).__name__}. Put @task on the function."
    )


def task_of(package: Any) -> Any:
    """Return the task that runs this package's job.

    Raises:
        UnknownTask: the task does not exist, or the app that it needs is not installed here.
    """
    via = package.options.via
    task = _find(via or package.task, import_module, _older_code)
    app = getattr(task, "needs_app", "")
    if app and not apps.is_installed(app):
        raise UnknownTask(
            f"There is no task {package.task!r} here: it needs the app {app!r}, which is not in "
            "INSTALLED_APPS. Was the app removed, or does this worker run older code? Then restart "
            "the cluster."
        )
    return task.under(package.task) if via else task


def _imported(name: str) -> ModuleType:
    if name not in sys.modules:
        raise ModuleNotFoundError(f"{name} is not imported", name=name)
    return sys.modules[name]


def _older_code(path: str) -> str:
    return (
        " Was it renamed or removed, or does this worker run older code? Then restart the cluster."
    )


def _suggestion(path: str) -> str:
    near = difflib.get_close_matches(path, tasks_of_apps(), n=1, cutoff=0.8)
    return f" Did you mean {near[0]!r}?" if near else ""


def _import(
    path: str, load: Callable[[str], ModuleType], advise: Callable[[str], str]
) -> tuple[ModuleType, list[str]]:
    """Import the longest part of the path that is a module. Return it and the remaining names."""
    parts = path.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise UnknownTask(f"{path!r} is not the name of a task, as in 'shop.tasks.send_welcome'.")
    for end in range(len(parts) - 1, 0, -1):
        name = ".".join(parts[:end])
        try:
            return load(name), parts[end:]
        except ModuleNotFoundError as error:
            # If this very module is missing, the last name may be an attribute of its parent.
            is_missing = error.name is not None and f"{name}.".startswith(f"{error.name}.")
            if not is_missing or end == 1:
                advice = advise(path) if is_missing else ""
                raise _not_imported(path, name, error, advice) from error
        except (Exception, SystemExit) as error:
            raise _not_imported(path, name, error) from error
    raise AssertionError("the loop returns or raises")


def _of_function(owner: Any, path: str) -> Any:
    """Find a task that has another name than its function, as in ``send = task(_send)``."""
    for candidate in vars(owner).values() if hasattr(owner, "__dict__") else ():
        # Check the type first, because any other access would evaluate a lazy object.
        may_be = hasattr(type(candidate), "module_path") and is_task(candidate)
        if may_be and candidate.module_path == path:
            return candidate
    return None


def _not_imported(path: str, module: str, error: BaseException, advice: str = "") -> UnknownTask:
    return UnknownTask(
        f"There is no task {path!r} here: importing {module} failed with "
        f"{type(error).__name__}: {error}" + (f".{advice}" if advice else "")
    )


_MISSING = object()


def import_tasks() -> dict[str, BaseException]:
    """Import the modules named ``tasks`` of all apps. Return the errors of those that cannot be
    imported, by the name of the module."""
    broken: dict[str, BaseException] = {}
    for app in apps.get_app_configs():
        if app.module is not None and module_has_submodule(app.module, "tasks"):
            name = f"{app.name}.tasks"
            try:
                import_module(name)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the project's modules may raise anything
                broken[name] = error
    return broken


def import_tasks_or_log() -> None:
    """Import the modules named ``tasks`` of all apps, and log an error for each that cannot be
    imported. A process that only serves can show the tasks of the others."""
    for name, error in import_tasks().items():
        logger.error("%s cannot be imported, so its tasks are unknown.", name, exc_info=error)


def tasks_of_apps() -> dict[str, Any]:
    """Import the modules named ``tasks`` of all apps, and return their tasks by dotted path. Tasks
    in other modules are not found."""
    import_tasks()
    homes = tuple(f"{app.name}.tasks." for app in apps.get_app_configs())
    found = {}
    for name, module in list(sys.modules.items()):
        if not f"{name}.".startswith(homes):
            continue
        for attribute, value in list(vars(module).items()):
            if is_task(value) and value.module_path == f"{name}.{attribute}":
                found[value.module_path] = value
    return found


_exposed: dict[str, Any] = {}


def expose(task: Any) -> None:
    """Register a task that has ``exposed`` set, so that it can be enqueued over HTTP.

    Variants made by ``using()`` are ignored. A reloaded module replaces its tasks.

    Raises:
        InvalidTaskOption: another task has the same public name.
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
    """Return the public name of an exposed task."""
    return task.exposed if isinstance(task.exposed, str) else str(task.module_path)


def exposed_task(name: str) -> Any:
    """Return the task that is exposed under that name.

    Raises:
        UnknownTask: no imported module exposes a task of that name.
    """
    task = _exposed.get(name)
    if task is None:
        raise UnknownTask(f"No task is exposed as {name!r}. @task(exposed=True) exposes one.")
    return task


def exposed_tasks() -> Mapping[str, Any]:
    """Return the exposed tasks by name, in alphabetical order."""
    return dict(sorted(_exposed.items()))
