"""``@task``: turn a function into a task."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    Unpack,
    overload,
)

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from stoker import compat
from stoker.compat import DEFAULT_TASK_BACKEND_ALIAS, task_backends
from stoker.exceptions import InvalidTaskOption, UnknownTask

from .options import OPTIONS, Options, TaskOptions, options_of, refuse_unknown
from .registry import find_task
from .task import Call, Task, option_fields

P = ParamSpec("P")
R = TypeVar("R")

if TYPE_CHECKING:
    # Generic only in the type stubs, so parameters would fail at run time.
    TaskContext = compat.TaskContext[Any, Any]
else:
    TaskContext = compat.TaskContext


class _Decorator(Protocol):
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


class _ContextDecorator(Protocol):
    @overload
    def __call__(
        self, function: Callable[Concatenate[TaskContext, P], Coroutine[Any, Any, R]], /
    ) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[TaskContext, P], R], /) -> Task[P, R]: ...


@overload
def task(function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
@overload
def task(function: Callable[P, R], /) -> Task[P, R]: ...
@overload
def task(
    *,
    takes_context: Literal[True],
    priority: int = ...,
    queue_name: str = ...,
    backend: str = ...,
    **options: Unpack[Options],
) -> _ContextDecorator: ...
@overload
def task(
    *,
    takes_context: Literal[False] = False,
    priority: int = ...,
    queue_name: str = ...,
    backend: str = ...,
    **options: Unpack[Options],
) -> _Decorator: ...
def task(
    function: Callable[..., Any] | None = None,
    /,
    *,
    takes_context: bool = False,
    backend: str = DEFAULT_TASK_BACKEND_ALIAS,
    **options: Any,
) -> Any:
    """Turn a function into a task: ``@task`` or ``@task(max_attempts=5, ...)``.

    Works like ``django.tasks.task``, and accepts Stoker's options on every Django version. They
    have no effect on a backend that is not Stoker's, such as a backend for tests.

    Args:
        function: a module-level function, sync or ``async def``.
        takes_context: pass a TaskContext as the first argument, named ``context``.
        backend: an alias in ``TASKS``.
        options: ``priority``, ``queue_name`` and Stoker's options: the fields of Task.

    Raises:
        InvalidTaskOption: an option is unknown or has a wrong value.
        InvalidTask: the function, priority or queue cannot be used.
    """
    if "run_after" in options:
        raise InvalidTaskOption(
            "@task has no option 'run_after': a moment fits one job, so write "
            "my_task.using(run_after=...).enqueue(...)."
        )
    refuse_unknown(options, ["priority", "queue_name", *OPTIONS], "@task")

    def decorate(decorated: Callable[..., Any]) -> Task[..., Any]:
        kind = task_backends[backend].task_class
        own = kind if issubclass(kind, Task) else Task
        return own(func=decorated, takes_context=takes_context, backend=backend, **options)

    return decorate if function is None else decorate(function)


def own_backends() -> dict[str, Any]:
    """Return alias -> backend, for the backends in ``TASKS`` whose tasks are Stoker's."""
    found = {}
    for alias in getattr(settings, "TASKS", None) or {}:
        try:
            backend = task_backends[alias]
        except (ImproperlyConfigured, KeyError):  # Django raises it again when the backend is used
            continue
        if issubclass(backend.task_class, Task):
            found[alias] = backend
    return found


__all__ = [
    "AbsentTask",
    "Call",
    "Task",
    "TaskContext",
    "TaskOptions",
    "absent_task",
    "find_task",
    "option_fields",
    "options_of",
    "own_backends",
    "task",
]


class AbsentTask(Task[..., Any]):
    """Placeholder in a result for a task that no longer exists. It has a name and cannot run."""

    __slots__ = ()

    def __post_init__(self) -> None:
        """Skip the checks: a placeholder has no options."""

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
    """Placeholder for a function that no longer exists."""

    path: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise UnknownTask(
            f"There is no task {self.path!r} here (any more), so it cannot be called."
        )


def absent_task(path: str, backend: str = DEFAULT_TASK_BACKEND_ALIAS) -> AbsentTask:
    """Return a placeholder for the task of that name. Calling its function raises UnknownTask."""
    return AbsentTask(func=_Absent(path), backend=backend)
