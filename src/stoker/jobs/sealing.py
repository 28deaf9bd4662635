"""Check that calls are valid, and seal them into packages.

The first argument of some calls is the result of another job, which is unknown when they are
checked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn
from uuid import UUID

from stoker.brokers.dispatch import Dispatch
from stoker.compat import InvalidTask, TaskResultStatus, task_backends
from stoker.conf import Settings
from stoker.exceptions import InvalidTaskOption, NotSerializable, as_seconds
from stoker.guards.keys import UniqueClaim, needs_of, unique_of
from stoker.guards.unique import CHANGES, identity_of
from stoker.models.job import Message
from stoker.models.need import NewNeed
from stoker.signals import pre_enqueue
from stoker.store.written import moment
from stoker.tasks.arguments import mismatch_of
from stoker.tasks.guards import signature_of_call
from stoker.tasks.options import TaskOptions, as_timestamp, expires_at, is_guarded, options_of
from stoker.tasks.signatures import Signature, as_node
from stoker.values import codec
from stoker.values.codec import NotEncodable
from stoker.values.ids import LINKED, new_job_id
from stoker.workflows import deliver as stored
from stoker.workflows.hooks import FAILURE, FINISH, RECORD, SUCCESS

from .package import JobOptions, Package, sealer_for
from .results import Commitment, Result
from .states import JobState, Progress


class NotYetKnown:
    """Placeholder for an argument that another job will provide. It cannot be part of a key, and a
    key cannot depend on it. Compare it with ``is`` only."""

    def _ask(self, *args: Any) -> NoReturn:
        raise _Asked

    __getattr__ = __str__ = __repr__ = __format__ = _ask
    __eq__ = __hash__ = __bool__ = _ask  # otherwise inherited from object
    __len__ = __iter__ = __getitem__ = _ask
    __class__ = property(_ask)  # for isinstance()


class _Asked(Exception):
    """Raised when a key is built from an argument that is not known yet."""


NOT_YET_KNOWN = NotYetKnown()


def calls_of(args: Sequence[Any], each: str, receives: str) -> Iterator[tuple[Any, ...]]:
    """Yield the positional arguments of each call that a job makes.

    Raises:
        TypeError: an item of a starmap is not a list or tuple of arguments.
    """
    if not each:
        yield (NOT_YET_KNOWN, *args) if receives else tuple(args)
        return
    for item in args[0]:
        yield _arguments_in(item) if each == "starmap" else (item,)


def _arguments_in(item: Any) -> tuple[Any, ...]:
    try:
        iter(item)
    except TypeError:
        raise TypeError(
            f"starmap(): an item is of type {type(item).__name__}, but each item must be a list or "
            "tuple of arguments. Use map() to pass each item as the only argument."
        ) from None
    return tuple(item)


def refuse_wrong_arguments(task: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raise TypeError if the function does not accept these arguments. The error then appears at
    the call and not in a worker."""
    context = (None,) if task.takes_context else ()
    signature = signature_of_call(task.func, False)
    if signature is None or _fits(task.func, len(context) + len(args), tuple(kwargs)):
        return
    try:
        signature.bind(*context, *args, **kwargs)
    except TypeError as error:
        given = bool(args) and args[0] is NOT_YET_KNOWN
        hint = " (the first is the result of the previous step or job)"
        raise TypeError(
            f"{task.module_path}{signature} does not take these arguments"
            f"{hint if given else ''}: {mismatch_of(error, signature, kwargs)}."
        ) from None


def refuse_unusual(task: Any, each: str, what: str) -> None:
    """Raise InvalidTaskOption if the task has guards that a job of this kind cannot have."""
    if getattr(task, "unique", None) is not None:
        raise InvalidTaskOption(
            f"{task.module_path} is unique, and {what} is always a job of its own: write "
            f"{task.name}.using(unique=None)."
        )
    if each and is_guarded(task):
        raise InvalidTaskOption(
            f"{task.module_path} has a guard (lock, limit, rate or sequence), which is kept for "
            f"each job: with {each}() a job makes several calls. Use group() instead."
        )


def needs_of_step(
    task: Any, args: Sequence[Any], kwargs: Mapping[str, Any], receives: str
) -> tuple[NewNeed, ...]:
    """Return the needs of a call whose first argument may be unknown.

    Raises:
        InvalidTaskOption: a key depends on that argument.
    """
    if not receives or not is_guarded(task):
        return needs_of(task, args, kwargs)
    try:
        return needs_of(task, (NOT_YET_KNOWN, *args), kwargs)
    except (_Asked, NotSerializable) as error:
        raise InvalidTaskOption(
            f"{task.module_path} has a guard whose key uses the result of the previous step, "
            "which is not known yet: write it with si(), or give the guard another key."
        ) from error


def check_backend(task: Any, broker: Dispatch) -> None:
    """Raise InvalidTask if the broker does not support an option of the task."""
    if not broker.capabilities.atomic and getattr(task, "atomic", False):
        raise InvalidTask(
            f"{task.module_path} has atomic=True, but jobs of {broker.info()['broker']} cannot be "
            "part of a transaction: set BROKER to a database."
        )
    if not broker.capabilities.guards and is_guarded(task):
        raise InvalidTask(
            f"{task.module_path} has a guard (unique, lock, limit, rate or sequence), and "
            f"{broker.info()['broker']} does not support guards: set BROKER to a database."
        )


@lru_cache(maxsize=4096)
def _fits(function: Callable[..., Any], count: int, names: tuple[str, ...]) -> bool:
    """Return whether the function takes this many positional and these keyword arguments. Cached,
    because many calls have the same form."""
    signature = signature_of_call(function, False)
    assert signature is not None
    try:
        signature.bind(*range(count), **dict.fromkeys(names))
    except TypeError:
        return False
    return True


HOOKS = {"on_success": SUCCESS, "on_failure": FAILURE, "on_finish": FINISH}


def hooks_of(settings: Settings, task: Any) -> str:
    """Return the hooks of a task in the form stored in its packages. "": none.

    Raises:
        InvalidTask, InvalidTaskOption, NotSerializable, TypeError: a hook is invalid.
    """
    rows = []
    for option, when in HOOKS.items():
        hook = getattr(task, option, None)
        if hook is None:
            continue
        node = as_node(hook)
        assert isinstance(node, Signature)
        rows.append([when, *_row(settings, f"{option} of {task.module_path}", node)])
    if recorder := getattr(task, "recorder", ""):
        rows.append([RECORD, recorder])
    return codec.write(codec.encode(rows)).decode() if rows else ""


def _row(settings: Settings, owner: str, hook: Signature) -> list[Any]:
    task = hook.task
    if task.backend != settings.alias:
        raise InvalidTaskOption(
            f"{owner}: {task.module_path} belongs to the backend {task.backend!r}; set it to "
            f"{settings.alias!r}, too."
        )
    task_backends[settings.alias].validate_task(task)
    refuse_unusual(task, "", f"{owner}, a hook,")
    receives = "result" if hook.receives else ""
    for args in calls_of(hook.args, "", receives):
        refuse_wrong_arguments(task, args, hook.kwargs)
    options = options_of(task, settings)
    row = [
        task.module_path,
        task.queue_name,
        int(task.priority),
        [options.max_attempts, options.max_crashes, options.timeout_seconds],
        list(hook.args),
        dict(hook.kwargs),
        [list(need) for need in needs_of_step(task, hook.args, hook.kwargs, receives)],
        receives,
    ]
    if more := _extras(settings, task):
        row.append(more)
    try:
        codec.encode(row)
    except NotEncodable as refusal:
        raise NotSerializable(
            f"{owner}: an argument of {task.module_path} is {type(refusal.value).__name__}, which "
            "cannot be stored with the job: pass plain values."
        ) from None
    return row


def _extras(settings: Settings, task: Any) -> dict[str, Any]:
    """Return the delay, the expiry and the hooks of a hook's task, without those that it does not
    have. Earlier versions did not know them."""
    expires = getattr(task, "expires", None)
    extras = {
        "run_after": None if task.run_after is None else as_timestamp(task.run_after),
        "run_after_seconds": getattr(task, "run_after_seconds", None),
        "expires_at": as_timestamp(expires) if isinstance(expires, datetime) else None,
        "expires_seconds": None if isinstance(expires, datetime) else expires,
        "hooks": hooks_of(settings, task) or None,
    }
    return {name: value for name, value in extras.items() if value is not None}


Call = tuple[Iterable[Any], Mapping[str, Any]]

carried: ContextVar[Mapping[str, str]] = ContextVar("stoker_carried", default={})  # noqa: B039 - never changed
"""Metadata that is added to all jobs enqueued in this context."""
NO_JOB = UUID(int=0)
MOST_KNOWN = 500
_known: dict[tuple[int, int, int], tuple[Any, Any, Settings, TaskOptions]] = {}
"""Cache of tasks that were checked, with their options. There may be many: using() creates new
tasks, and each thread has its own backend."""
_in_store: ContextVar[bool] = ContextVar("in_store", default=False)
WORKFLOW = "stoker.workflow"
"""Metadata key of a step: the id of its workflow."""


@contextmanager
def carrying(more: Mapping[str, str], *, in_store: bool = False) -> Iterator[None]:
    """Let the jobs that are enqueued here carry this as metadata, too, and wait in the store if
    ``in_store``."""
    token, store_token = carried.set({**carried.get(), **more}), _in_store.set(in_store)
    try:
        yield
    finally:
        carried.reset(token)
        _in_store.reset(store_token)


@dataclass(slots=True)
class Newcomer:
    """A call that has been checked and sealed."""

    package: Package
    message: Message
    result: Result[Any]
    claim: UniqueClaim | None = None


class Sealing:
    """The calls of one task that are enqueued together.

    Args:
        commitment: tells whether the transaction that stores the jobs was committed.

    Raises: see ``StokerBackend.validate_task``.
    """

    def __init__(self, settings: Settings, task: Any, commitment: Commitment) -> None:
        backend = task_backends[settings.alias]
        self.settings = settings
        self._task = task
        self._queue = str.__str__(task.queue_name)  # of an Enum, its value
        self._sender = type(backend)
        self.commitment = commitment
        self._sealer = sealer_for(settings)
        self._options = _checked(settings, task, backend)
        self._hooks = hooks_of(settings, task)
        is_unique = getattr(task, "unique", None) is not None
        is_atomic = bool(getattr(task, "atomic", False))
        self.stays_in_store = is_unique or is_atomic or _in_store.get()
        """Whether the jobs must wait in the store, for example because atomic tasks need the
        store's transaction."""

    def seal(self, calls: Sequence[Call], like: JobOptions | None = None) -> list[Newcomer]:
        """Check and seal calls.

        Args:
            like: options of the job that these calls continue. They receive the same arguments from
                other jobs.
        """
        now = time.time()
        run_after, options = self._run_after_and_options(now)
        if like is not None:
            options = replace(options, receives=like.receives, each=like.each)
        return [self._seal_one(args, kwargs, now, run_after, options) for args, kwargs in calls]

    def in_common(self) -> tuple[Package, float | None]:
        """Return a package with the fields that all jobs of this call have in common, and their due
        time. Its id and arguments are empty."""
        now = time.time()
        run_after, options = self._run_after_and_options(now)
        like = self._package(NO_JOB, (), {}, now, options)
        return like, run_after

    def seal_step(self, signature: Signature, job_id: UUID, receives: str) -> bytes:
        """Check and seal a step of a workflow, to be stored until it starts.

        Args:
            receives: the argument that it will receive, as in JobOptions.
        """
        task, now = self._task, time.time()
        refuse_unusual(task, signature.each, "a step of a workflow")
        args = tuple(signature.args)
        for one in calls_of(args, signature.each, receives):
            refuse_wrong_arguments(task, one, signature.kwargs)
        options = self._job_options(expires_at(task, now))
        options = replace(options, receives=receives, each=signature.each)
        package = self._package(job_id, args, dict(signature.kwargs), now, options)
        message = Message(
            job_id=job_id,
            task=package.task,
            queue=package.queue,
            priority=package.priority,
            package=self._sealer.seal(package),
            run_after=None if task.run_after is None else as_timestamp(task.run_after),
            needs=needs_of_step(task, args, signature.kwargs, receives),
            stays_in_store=self.stays_in_store,
        )
        return stored.write(message, getattr(task, "run_after_seconds", None))

    def _run_after_and_options(self, now: float) -> tuple[float | None, JobOptions]:
        run_after = self._run_after(now)
        expires = expires_at(self._task, now) if self._options.may_expire else None
        if expires is not None and expires <= self._earliest_start(now, run_after):
            raise InvalidTaskOption(
                f"A job of {self._task.module_path} would expire before it may start: set expires "
                "to a time later than run_after and the delay of Unique."
            )
        return run_after, self._job_options(expires)

    def _job_options(self, expires: float | None) -> JobOptions:
        return JobOptions(
            max_attempts=self._options.max_attempts,
            max_crashes=self._options.max_crashes,
            timeout_seconds=self._options.timeout_seconds,
            expires_at=expires,
            hooks=self._hooks,
            via=getattr(self._task, "via", ""),
        )

    @property
    def has_hooks(self) -> bool:
        """Whether the task's jobs have hooks, which are enqueued when the job has ended."""
        return bool(self._hooks)

    def result(self, package: Package, run_after: float | None) -> Result[Any]:
        """Return the result for the caller."""
        state = JobState.READY if run_after is None else JobState.DEFERRED
        return Result(
            task=self._task,
            id=str(package.job_id),
            status=TaskResultStatus.READY,
            enqueued_at=moment(package.enqueued_at),
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=list(package.args),
            kwargs=package.kwargs,
            backend=self.settings.alias,
            errors=[],
            worker_ids=[],
            _first_progress=Progress(None, state),
            _first_commitment=self.commitment,
        )

    def _seal_one(
        self,
        args: Iterable[Any],
        kwargs: Mapping[str, Any],
        now: float,
        run_after: float | None,
        options: JobOptions,
    ) -> Newcomer:
        task, positional, named = self._task, tuple(args), dict(kwargs)
        is_step = bool(options.receives or options.each)
        for one in (
            calls_of(positional, options.each, options.receives) if is_step else [positional]
        ):
            refuse_wrong_arguments(task, one, named)
        claim = None
        if self._options.is_guarded and not is_step:
            claim = unique_of(task, positional, named)
        # A job may later be changed to another call, which has hooks.
        may_change = claim is not None and claim.on_conflict in CHANGES
        if claim is not None:
            options = replace(options, identity=identity_of(claim))
        job_id = new_job_id(LINKED if self._hooks or may_change else 0)
        package = self._package(job_id, positional, named, now, options)
        needs: tuple[NewNeed, ...] = ()
        if self._options.is_guarded:
            needs = needs_of_step(task, positional, named, options.receives)
        message = Message(
            job_id=package.job_id,
            task=package.task,
            queue=package.queue,
            priority=package.priority,
            package=self._sealer.seal(package),
            run_after=run_after,
            enqueued_at=now,
            needs=needs,
            is_fresh=True,
            stays_in_store=self.stays_in_store,
        )
        return Newcomer(package, message, self.result(package, run_after), claim)

    def _package(
        self,
        job_id: UUID,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        now: float,
        options: JobOptions,
    ) -> Package:
        return Package(
            job_id=job_id,
            task=self._task.module_path,
            args=args,
            kwargs=kwargs,
            queue=self._queue,
            priority=int(self._task.priority),
            enqueued_at=now,
            options=options,
            metadata=self._metadata(job_id, args, kwargs),
        )

    def _metadata(
        self, job_id: UUID, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> dict[str, str]:
        metadata: dict[Any, Any] = dict(carried.get())
        if pre_enqueue.receivers:
            call = {"task": self._task, "args": args, "kwargs": kwargs, "job_id": job_id}
            pre_enqueue.send_robust(self._sender, **call, metadata=metadata)
        return {str(key): str(value) for key, value in metadata.items()}

    def _run_after(self, now: float) -> float | None:
        """Return the earliest start in seconds since 1970, or None."""
        delay = getattr(self._task, "run_after_seconds", None)
        if delay is not None:
            return now + float(delay)
        return None if self._task.run_after is None else as_timestamp(self._task.run_after)

    def _earliest_start(self, now: float, run_after: float | None) -> float:
        unique = getattr(self._task, "unique", None)
        delay = unique.delay if unique is not None else None
        postponed = float("-inf") if delay is None else now + as_seconds(delay)
        return max(float("-inf") if run_after is None else run_after, postponed)


def _checked(settings: Settings, task: Any, backend: Any) -> TaskOptions:
    """Check the task once and return its effective options. Cached by identity, because tasks and
    backends do not change."""
    key = (id(task), id(backend), id(settings))
    known = _known.get(key)
    # the entry keeps references to all three, so that their ids are not reused
    if known is not None:
        return known[-1]
    backend.validate_task(task)
    _refuse_script(task)
    options = options_of(task, settings)
    if len(_known) >= MOST_KNOWN:
        _known.clear()
    _known[key] = (task, backend, settings, options)
    return options


def _refuse_script(task: Any) -> None:
    if task.module_path.startswith("__main__."):
        raise InvalidTask(
            f"No worker can import {task.module_path}, because it is defined in the main program. "
            "Move the function into a module of an app."
        )
