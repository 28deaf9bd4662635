"""``@task``: makes a function a task."""

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
    # Generic in the stubs, and not in Django: written with its parameters it would not run.
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
    """Make a function a task: ``@task`` or ``@task(max_attempts=5, ...)``.

    Works as ``django.tasks.task`` does, with every option of Stoker's on every Django. Where the
    backend is another one than Stoker, as one for tests may be, Stoker's options have no effect.

    Args:
        function: a function of a module, sync or ``async def``.
        takes_context: give the function a TaskContext as its first argument, named ``context``.
        backend: the name under ``TASKS``.
        options: ``priority``, ``queue_name`` and the options of Stoker, as the fields of Task say.

    Raises:
        InvalidTaskOption: an option is unknown, or has a wrong value.
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
    """Alias -> backend, for the entries of ``TASKS`` whose tasks are Stoker's."""
    found = {}
    for alias in getattr(settings, "TASKS", None) or {}:
        try:
            backend = task_backends[alias]
        except (ImproperlyConfigured, KeyError):  # Django tells whoever uses it what is wrong
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
