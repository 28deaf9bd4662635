"""``Task``: a task of ``django.tasks`` with Stoker's options, and the checks of its guards."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import Field, dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar, Unpack, cast

from asgiref.sync import sync_to_async

from stoker.compat import (
    DEFAULT_TASK_BACKEND_ALIAS,
    DEFAULT_TASK_PRIORITY,
    DEFAULT_TASK_QUEUE_NAME,
    DjangoTask,
    TaskResultMismatch,
)
from stoker.exceptions import InvalidTaskOption
from stoker.values.marks import project_moment

from .dead_letters import DeadLetters
from .guards import (
    Guard,
    InSequence,
    Limit,
    Lock,
    Rate,
    Unique,
    names_in,
    refuse_stranger,
    refuse_strangers,
)
from .options import (
    CHANGES,
    GUARDS,
    BackoffOption,
    Changes,
    Check,
    ErrorClasses,
    backoff,
    description,
    error_classes,
    expiry,
    exposure,
    function,
    hook,
    not_before,
    one_policy,
    option,
    positive_seconds,
    redaction,
    refuse_unknown,
    whole,
    yes_or_no,
)
from .registry import expose, find_task
from .schedules import Scheduled, declare, schedules_of
from .signatures import Steps

if TYPE_CHECKING:
    from stoker.jobs.results import Result


OF_CELERY = {
    "delay": "enqueue(...)",
    "apply_async": "using(...).enqueue(...), with options such as run_after and queue_name",
    "apply": "call(...)",
}
"""Methods of Celery's tasks, and the calls that stand for them."""


def one_guard(kind: type[Guard]) -> Check:
    def check(name: str, value: Any) -> Any:
        if not isinstance(value, kind):
            raise InvalidTaskOption(f"{name}={value!r}: write {name}={_meant(kind, value)}.")
        return value

    return check


def some_guards(kind: type[Limit | Rate]) -> Check:
    """Return a check that accepts one guard of that kind or several, and stores them as a tuple."""

    def check(name: str, value: Any) -> Any:
        guards = tuple(value) if isinstance(value, tuple | list) else (value,)
        for one in guards:
            if not isinstance(one, kind):
                raise InvalidTaskOption(
                    f"{name}={value!r}: write {name}={_meant(kind, value)}, or several in a tuple."
                )
        _refuse_twins(name, guards)
        return guards

    return check


def _refuse_twins(name: str, guards: Sequence[Limit | Rate]) -> None:
    """Check that limits differ in their keys, and that rates with the same key differ in their
    periods."""
    seen: set[Any] = set()
    for guard in guards:
        twin = (guard.key, guard.window if isinstance(guard, Rate) else None)
        if twin in seen:
            raise InvalidTaskOption(
                f"{name}: two of them count the same jobs, under the key {guard.key!r}. Keep only "
                "the stricter one, or give one another key."
            )
        seen.add(twin)


def in_sequence(name: str, value: Any) -> InSequence:
    """Check the option ``sequence``: a key or an InSequence. Return an InSequence."""
    if isinstance(value, InSequence):
        return value
    if isinstance(value, str):
        return InSequence(value)
    raise InvalidTaskOption(
        f'{name}={value!r}: write {name}="account:{{account_id}}", or {EXAMPLES[InSequence]}, '
        "whose key may also be a callable."
    )


def _meant(kind: type[Guard], value: Any) -> str:
    """Return the guard that the user probably meant, as text for the error message; else an
    example."""
    fits = isinstance(value, str if kind in (Unique, Lock, Rate) else int)
    if fits and not isinstance(value, bool):
        with suppress(InvalidTaskOption):
            kind(value)
            return f"{kind.__name__}({json.dumps(value, ensure_ascii=False)})"
    return EXAMPLES[kind]


EXAMPLES: dict[type[Guard], str] = {
    Unique: 'Unique("feed:{feed_id}")',
    Lock: 'Lock("feed:{feed_id}")',
    Limit: "Limit(4)",
    Rate: 'Rate("100/m")',
    InSequence: 'InSequence("account:{account_id}", after_failure="halt")',
}


P = ParamSpec("P")
R = TypeVar("R")

Call = tuple[Iterable[Any], Mapping[str, Any]]
"""Arguments of one job: ``(args, kwargs)``."""


# Django's Task is not generic, the backport's is. With Generic here ours is generic on both.
# `slots=True` makes the class a second time, and `super()` without arguments would mean the first,
# so the base is called by its name.
@dataclass(frozen=True, slots=True, kw_only=True)
class Task(Steps, DjangoTask, Generic[P, R]):  # type: ignore[type-arg] # generic in the stubs and the backport only
    """A task of ``django.tasks`` with options for retries, time-outs, guards and schedules.

    None and () mean that the backend's setting applies. For a guard they mean that the task has
    none.
    """

    func: Callable[..., R]
    """The function. With ``takes_context`` its first parameter is ``context``, a TaskContext."""

    priority: int = DEFAULT_TASK_PRIORITY
    """Priority between -100 and 100; higher runs first."""

    backend: str = DEFAULT_TASK_BACKEND_ALIAS
    """Alias in ``TASKS``."""

    queue_name: str = DEFAULT_TASK_QUEUE_NAME
    """Queue of the jobs: one of the backend's ``QUEUES``, or any name if that is []."""

    run_after: datetime | None = None
    """Earliest start of the jobs. Set by ``using()``: a datetime, or seconds or a timedelta after
    the enqueue. A delay of 0 or less means now, as does a datetime in the past. The year of a
    datetime is between 1900 and 9000."""

    takes_context: bool = False
    """Whether the function receives a TaskContext as its first argument."""

    run_after_seconds: float | None = None
    """Delay between enqueue and earliest start. Set by ``using(run_after=seconds)``."""

    max_attempts: int | None = option(None, whole(1, 10_000))
    """Number of attempts before a job becomes a dead letter. Setting: ``MAX_ATTEMPTS``."""

    max_crashes: int | None = option(None, whole(1, 10_000))
    """Number of times that a job may crash its worker process. Setting: ``MAX_CRASHES``."""

    backoff: BackoffOption | None = option(None, backoff)
    """Delay before the next attempt: seconds or a timedelta; a list of delays, the last of which
    repeats; or ``f(exception, task_result)``, which returns a delay, or None to give up. See
    ``exponential``, ``linear`` and ``constant``. Setting: ``BACKOFF``."""

    timeout: float | timedelta | None = option(None, positive_seconds)
    """Maximum duration of one attempt, in seconds or a timedelta; ``math.inf`` = no limit. Setting:
    ``TIMEOUT``."""

    retry_on: ErrorClasses = option((), error_classes)
    """An exception class or a tuple of them; the job is not retried after any other. () = all."""

    give_up_on: ErrorClasses = option((), error_classes)
    """An exception class or a tuple of them. The job is never retried after these, even if
    ``retry_on`` includes them."""

    expires: float | timedelta | datetime | None = option(None, expiry)
    """Time after which a job that has not started becomes a dead letter: seconds or a timedelta
    after the enqueue, or, with ``using()``, an aware datetime."""

    unique: Unique | None = option(None, one_guard(Unique))
    """Allow only one job with the same key."""

    lock: Lock | None = option(None, one_guard(Lock))
    """Run one job with the same key at a time."""

    limit: Limit | tuple[Limit, ...] | None = option(None, some_guards(Limit))
    """Limit how many jobs with the same key run at a time: one Limit or a tuple of them."""

    rate: Rate | tuple[Rate, ...] | None = option(None, some_guards(Rate))
    """Limit how many jobs with the same key start in a period: one Rate or a tuple of them."""

    sequence: str | InSequence | None = option(None, in_sequence)
    """Run jobs with the same key one after another, in the order of their enqueues: a key, or an
    InSequence."""

    atomic: bool = option(False, yes_or_no)
    """Whether the job's writes to the queue's database and its completion are committed
    together."""

    at_most_once: bool = option(False, yes_or_no)
    """Whether a job is never started a second time. It becomes a dead letter instead. Implies
    ``max_attempts=1``."""

    schedule: Scheduled | Sequence[Scheduled] = option((), schedules_of)
    """The task's schedules: ``Cron("0 3 * * *")``, ``every(minutes=5)``, ``once(...)``, or a list
    of them."""

    dead_letters: DeadLetters | None = option(None, one_policy)
    """Policy for requeueing dead letters automatically. Setting: ``DEAD_LETTERS``."""

    on_dead_letter: Callable[[Any], object] | None = option(None, function)
    """Function that is called with each new or updated dead letter, after the commit: in the
    monitor, or in the scheduler if the job's cluster or host was lost."""

    exposed: bool | str = option(False, exposure)
    """Whether the task may be enqueued over HTTP (``stoker.api``): True = under its path, as
    ``shop.tasks.send_welcome``; a text = under that name."""

    describe: str | None = option(None, description)
    """Label of a job in lists: a format string over the names of the function's parameters, as in
    ``"order {order_id}"``."""

    redact: Sequence[str] = option((), redaction)
    """Names of parameters, and of keys in dicts, whose values all interfaces hide, in addition to
    those of the setting ``REDACT``. Users with the permission ``stoker.reveal_job`` see them."""

    on_success: Any = option(None, hook)
    """Task or signature to enqueue when a job has succeeded. It receives the Result, unless written
    with ``si``."""

    on_failure: Any = option(None, hook)
    """Task or signature to enqueue when a job has become a dead letter or was cancelled."""

    on_finish: Any = option(None, hook)
    """Task or signature to enqueue when a job has ended, in whatever state."""

    def __repr__(self) -> str:
        return f"<Task {self.module_path}>"

    if not TYPE_CHECKING:  # or every attribute would seem to exist

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError. For a method of Celery's, say what to write instead."""
            sentence = f"{type(self).__name__!r} object has no attribute {name!r}"
            if name in OF_CELERY:
                sentence += f": write {OF_CELERY[name]}."
            raise AttributeError(sentence, name=name, obj=self)

    def __post_init__(self) -> None:
        """Check every option.

        Raises:
            InvalidTaskOption: an option of Stoker is wrong.
            InvalidTask: an option of Django is wrong.
        """
        for spec in option_fields():
            value = getattr(self, spec.name)
            if value is not None and value != ():
                checked = spec.metadata["check"](spec.name, value)
                object.__setattr__(self, spec.name, checked)
        if self.at_most_once and self.max_attempts not in (None, 1):
            raise InvalidTaskOption(
                f"max_attempts={self.max_attempts}: a task with at_most_once=True has one attempt."
            )
        DjangoTask.__post_init__(self)
        refuse_strangers(self, GUARDS)
        refuse_stranger(self, f"describe={self.describe!r}", names_in(self.describe or ""))
        expose(self)
        declare(self)

    def using(self, **changes: Unpack[Changes]) -> Self:
        """Return a copy of this task with other options.

        Args:
            priority, queue_name, backend: as for ``@task``; None = unchanged.
            run_after: a datetime, or seconds or a timedelta from the enqueue on; None = unchanged.
                A delay of 0 or less means now, as does a datetime in the past.
            max_attempts, max_crashes, timeout, expires: as for ``@task``; None = the backend's
                settings.
            unique, lock, limit, rate, sequence: as for ``@task``; None = remove this guard.
            on_success, on_failure, on_finish: as for ``@task``; None = remove this hook.

        Raises:
            InvalidTaskOption: an option is unknown or has a wrong value.
            InvalidTask: an option of Django has a wrong value.
        """
        given: dict[str, Any] = dict(changes)
        refuse_unknown(given, CHANGES, "using()")
        for name in ("priority", "queue_name", "backend", "run_after"):
            if given.get(name, name) is None:
                del given[name]
        if "run_after" in given:
            given |= not_before(given.pop("run_after"))
        return replace(self, **given)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Result[R]:
        """Create a job for this call. Inside a transaction, the job exists when the transaction
        commits.

        Raises:
            TypeError: the function does not accept these arguments.
            NotSerializable, PackageTooLarge: the arguments cannot be serialised.
            InvalidTask: the backend does not accept the task (any more).
            NotMigrated, BrokerUnavailable: the job could not be stored.
        """
        due = self._counted_from_now()
        backend: Any = due.get_backend()
        result: Result[R] = backend.enqueue(due, args, kwargs)
        return result

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Result[R]:
        """Async version of ``enqueue``. The job joins the transaction of this async context."""
        due = self._counted_from_now()
        backend: Any = due.get_backend()
        result: Result[R] = await backend.aenqueue(due, args, kwargs)
        return result

    def enqueue_many(self, calls: Iterable[Call]) -> Sequence[Result[R]]:
        """Create a job for each call, with one round trip for about a thousand jobs.

        All or none are created. The exception: outside a transaction, if jobs wait at a broker
        outside the database, and the broker fails meanwhile, some may have been created.

        Args:
            calls: ``(args, kwargs)`` pairs, as in ``[((7,), {"tenant_id": 1}), ...]``.

        Raises: as ``enqueue``.
        """
        due = self._counted_from_now()
        backend: Any = due.get_backend()
        results: Sequence[Result[R]]
        if hasattr(backend, "enqueue_many"):
            results = backend.enqueue_many(due, calls)
        else:
            results = [backend.enqueue(due, args, kwargs) for args, kwargs in calls]
        return results

    async def aenqueue_many(self, calls: Iterable[Call]) -> Sequence[Result[R]]:
        """Async version of ``enqueue_many``."""
        return await sync_to_async(self.enqueue_many, thread_sensitive=True)(calls)

    def get_result(self, result_id: str) -> Result[R]:
        """Return the result of one of this task's jobs.

        A job whose task cannot be known yet, because a server without look-up has it, counts as one
        of this task's.

        Raises:
            TaskResultDoesNotExist: no job with that id exists (any more).
            TaskResultMismatch: the job belongs to another task.
        """
        return self._checked(cast("Result[R]", self.get_backend().get_result(result_id)))

    async def aget_result(self, result_id: str) -> Result[R]:
        """Async version of ``get_result``."""
        result = await self.get_backend().aget_result(result_id)
        return self._checked(cast("Result[R]", result))

    def call(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function in this process, without a job. Also runs ``async def`` functions."""
        return cast(R, DjangoTask.call(self, *args, **kwargs))

    async def acall(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function in this process, without a job. Sync functions run in a thread."""
        return cast(R, await DjangoTask.acall(self, *args, **kwargs))

    def _checked(self, result: Result[R]) -> Result[R]:
        """Refuse the result of another task, as Django does."""
        if not result.task.module_path:
            return result._with(task=self)
        if result.task.func != self.func:
            raise TaskResultMismatch(f"Task does not match (received {result.task.module_path!r})")
        return result

    def _counted_from_now(self) -> Self:
        """Replace the delay by a datetime, for backends that do not support delays.

        The delay is added in UTC, because an hour is skipped or repeated on the wall clock when
        daylight saving time begins or ends.
        """
        if self.run_after_seconds is None:
            return self
        run_after = project_moment(datetime.now(UTC) + timedelta(seconds=self.run_after_seconds))
        return replace(self, run_after=run_after, run_after_seconds=None)

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    def __reduce__(self) -> Any:
        """Pickle the task by its name, as module-level functions are."""
        values = {
            spec.name: getattr(self, spec.name) for spec in fields(self) if spec.name != "func"
        }
        return _restored, (type(self), self.module_path, values)


def option_fields() -> list[Field[Any]]:
    """Return the fields of Task that are Stoker's options, in the order of the documentation."""
    return [spec for spec in fields(Task) if "check" in spec.metadata]


def _restored(kind: type[Task[..., Any]], path: str, values: dict[str, Any]) -> Task[..., Any]:
    return kind(func=find_task(path).func, **values)
