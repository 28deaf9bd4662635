"""Change waiting jobs: when they start, their priority, queue and arguments.

A job is locked where it waits, sealed again under its own id, and put in its new place in one
transaction. A job that has started meanwhile stays as it is.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import UUID

from django.db import DatabaseError, InterfaceError
from django.utils.crypto import salted_hmac

from stoker.brokers.adapters import broker_for
from stoker.conf import Settings
from stoker.guards.keys import needs_of, unique_of
from stoker.guards.sweep import look_after
from stoker.guards.unique import key_id_of
from stoker.models import Attempt, Deferred, Job, Need
from stoker.models.job import Message
from stoker.models.need import NewNeed, StatedNeed
from stoker.models.wait import NewWait, Wait
from stoker.setting_values import QUEUE_NAME, is_queue_name
from stoker.store import waiting
from stoker.store.engines.base import aware
from stoker.store.engines.sessions import explained
from stoker.store.places import WAITING
from stoker.store.statements import deciding
from stoker.store.transactions import after_commit
from stoker.store.waiting import Held
from stoker.store.written import MICROSECONDS, database_now_us, microseconds
from stoker.tasks.arguments import changed_call
from stoker.tasks.edited_arguments import restored
from stoker.tasks.registry import task_of
from stoker.values import codec
from stoker.values.marks import refuse_far_moment

from .faults import reason_of
from .package import Package, Sealer, refuse_other_function, sealer_for
from .sealing import refuse_wrong_arguments

HELD_UNTIL = datetime(9000, 1, 1, tzinfo=UTC)
"""The start of jobs that an operator holds."""
HELD_US = int(HELD_UNTIL.timestamp()) * MICROSECONDS
AT_ONCE = "at once"
AS_IT_IS = "as it is"
HIGHEST, LOWEST = 100, -100
STARTED_SINCE = "it has started since that operation"
STARTED = "it is not waiting (any more)"
OUTSIDE = (
    "jobs of a backend with a broker outside the database cannot be changed. Cancel it, and "
    "enqueue it again"
)


@dataclass(frozen=True, slots=True)
class Change:
    """The requested change of a job; None leaves a value as it is."""

    queue: str | None = None
    priority: int | None = None
    run_after: datetime | str = AS_IT_IS
    """A moment, ``AT_ONCE`` or ``AS_IT_IS``."""
    args: Sequence[Any] | None = None
    kwargs: Mapping[str, Any] | None = None
    arguments: Mapping[str, Any] | None = None
    """New values by the name of the argument, which may contain old ones; see ``changed_call``."""
    only_over: str | int | None = None
    """``Changed.after`` of the change to undo: jobs with another value by now are not changed.
    None = change any."""
    only_attempts: int | None = None
    """``Changed.attempts`` of the change to undo: jobs that have started since are not changed.
    None = change any."""

    @property
    def what(self) -> str:
        """Return which value of the job it replaces."""
        if self.queue is not None:
            return "queue"
        if self.priority is not None:
            return "priority"
        return "arguments" if self.run_after == AS_IT_IS else "start time"

    def check(self, settings: Settings) -> None:
        """Raise ValueError if these changes can be applied to no job."""
        if isinstance(self.run_after, datetime):
            refuse_far_moment(self.run_after)
        if self.priority is not None and not LOWEST <= self.priority <= HIGHEST:
            raise ValueError(f"A priority is between {LOWEST} and {HIGHEST}.")
        if self.queue is not None:
            if not is_queue_name(self.queue):
                raise ValueError(f"There is no queue {self.queue!r}: {QUEUE_NAME}.")
            if settings.queues and self.queue not in settings.queues:
                known = ", ".join(settings.queues)
                raise ValueError(f"There is no queue {self.queue!r}: QUEUES has {known}.")


@dataclass(frozen=True, slots=True)
class Changed:
    """The outcome for one job."""

    job_id: UUID
    refusal: str = ""
    """Why the job was not changed; "" = it was changed."""
    due: datetime | None = None
    """The previous due time; None = the job was due at once."""
    queue: str = ""
    """The previous queue."""
    priority: int = 0
    """The previous priority."""
    package: bytes = b""
    """The previous package."""
    after: str | int = ""
    """The new queue, priority, due time in microseconds or ``AT_ONCE``, or a digest of the new
    arguments."""
    attempts: int = 0
    """The number of attempts that have started."""


def is_held(run_after: datetime | None) -> bool:
    """Return whether a job with this ``run_after`` is held by an operator."""
    return run_after is not None and run_after.year >= HELD_UNTIL.year


def can_change(settings: Settings) -> bool:
    """Return whether the waiting jobs of this backend can be changed."""
    return broker_for(settings).capabilities.transactional


def change(settings: Settings, job_ids: Sequence[UUID], wanted: Change) -> list[Changed]:
    """Change waiting jobs, in one transaction.

    Raises:
        ValueError: these changes can be applied to no job.
        BrokerUnavailable, NotMigrated: the store cannot be read.
    """
    wanted.check(settings)
    alias, broker = settings.database, broker_for(settings)
    if not can_change(settings):
        return [Changed(job_id, OUTSIDE) for job_id in job_ids]
    with explained(alias):
        places = broker.states(job_ids)
        waits = {one: place for one, place in places.items() if place in WAITING}
        with deciding(alias):
            held = waiting.hold(alias, waits, alone=True)
            outcome, replacements = _decide(settings, held, wanted)
            if wanted.run_after == AT_ONCE:
                Wait.objects.using(alias).add(_waits_of_deferred(alias, replacements))
            neglected = waiting.replace(alias, replacements)
            neglected |= waiting.lines_of(alias, list(held.values()))
    queues = {job.queue for _, job in replacements}

    def follow_up() -> None:
        if neglected:
            look_after(alias, neglected)
        broker.wake_up(queues)

    if queues:
        after_commit(alias, follow_up)
    return [outcome.get(job_id) or Changed(job_id, STARTED) for job_id in job_ids]


Replacement = tuple[Held, Message]


def _decide(
    settings: Settings, held: Mapping[UUID, Held], wanted: Change
) -> tuple[dict[UUID, Changed], list[Replacement]]:
    alias = settings.database
    jobs = Job.objects.using(alias).in_bulk(list(held))
    needs = Need.objects.using(alias).of_jobs({i: one.place.guards for i, one in held.items()})
    deferred = [job_id for job_id, one in held.items() if one.table == "deferred"]
    rows = Deferred.objects.using(alias).filter(pk__in=deferred)
    due_us: dict[UUID, int] = dict(rows.values_list("pk", "due_us"))
    outcome, replacements = {}, []
    for job_id, one in held.items():
        due, attempts = due_us.get(job_id), one.place.attempts
        if wanted.only_attempts not in (None, attempts):
            outcome[job_id] = Changed(job_id, STARTED_SINCE)
            continue
        try:
            new, after = _new_job(settings, jobs[job_id], needs[job_id], due, wanted)
        except (DatabaseError, InterfaceError):
            raise
        except Exception as error:  # noqa: BLE001 - the task's own callables may raise anything
            outcome[job_id] = Changed(job_id, reason_of(error))
            continue
        before = None if due is None else datetime.fromtimestamp(due / MICROSECONDS, UTC)
        job = jobs[job_id]
        outcome[job_id] = Changed(
            job_id, "", before, job.queue, job.priority, bytes(job.package), after, attempts
        )
        replacements.append((one, new))
    return outcome, replacements


def _waits_of_deferred(alias: str, replacements: Sequence[Replacement]) -> Iterator[NewWait]:
    """Yield how long the deferred jobs have waited since their enqueue or last attempt. Afterwards
    their start time is overwritten."""
    deferred = {
        one.place.job_id: (one.place, job) for one, job in replacements if one.table == "deferred"
    }
    failures = Attempt.objects.using(alias).filter(job_id__in=deferred).order_by("number")
    failed_at = dict(failures.values_list("job_id", "finished_at"))
    now_us = database_now_us(alias) if deferred else 0
    for job_id, (place, job) in deferred.items():
        since_us = microseconds(job.enqueued_at)
        if job_id in failed_at:
            since_us = microseconds(aware(failed_at[job_id]).timestamp())
        waited = (Wait.Kind.START_TIME, "", since_us, now_us - since_us)
        yield NewWait(job_id, place.attempts, *waited)


def _new_job(
    settings: Settings,
    job: Job,
    needs: Sequence[StatedNeed],
    due_us: int | None,
    wanted: Change,
) -> tuple[Message, str | int]:
    """Return the changed job as the message to store, and its new value for ``Changed.after``.

    Raises:
        PackageError: its package cannot be opened.
        ValueError, TypeError, UnknownTask: the task does not accept the new arguments, or the
            present value may not be replaced.
    """
    sealer, sealed = sealer_for(settings), bytes(job.package)
    old = replace(sealer.open(sealed), queue=job.queue, priority=job.priority)
    value_of = partial(_value_of, sealer, wanted)
    is_unchanged = wanted.only_over in (None, value_of(old, sealed, due_us))
    if not (is_unchanged or _has_become_ready(wanted, due_us)):
        raise ValueError(f"its {wanted.what} changed after the operation that you want to undo")
    args, kwargs = _call(settings, old, wanted)
    package = replace(
        old,
        queue=old.queue if wanted.queue is None else wanted.queue,
        priority=old.priority if wanted.priority is None else wanted.priority,
        args=args,
        kwargs=kwargs,
    )
    own: Sequence[NewNeed] = [
        NewNeed(*(getattr(need, name) for name in NewNeed._fields)) for need in needs
    ]
    if (package.args, package.kwargs) != (old.args, old.kwargs):
        own = _needs_of_edited(old, package, own)
    run_after = None if due_us is None else due_us / MICROSECONDS
    if wanted.run_after == AT_ONCE:
        run_after = None
    elif isinstance(wanted.run_after, datetime):
        run_after = wanted.run_after.timestamp()
    message = Message(
        job_id=job.pk,
        task=job.task,
        queue=package.queue,
        priority=package.priority,
        package=sealer.seal(package),
        enqueued_at=old.enqueued_at,
        run_after=run_after,
        needs=own,
    )
    due_us = None if run_after is None else microseconds(run_after)
    return message, value_of(package, message.package, due_us)


def _has_become_ready(wanted: Change, due_us: int | None) -> bool:
    """Return whether the start time that the undone change has set has come."""
    set_us = wanted.only_over if wanted.what == "start time" else None
    return due_us is None and isinstance(set_us, int) and set_us <= microseconds(time.time())


def _value_of(
    sealer: Sealer, wanted: Change, package: Package, data: bytes, due_us: int | None
) -> str | int:
    """Return the value of a job that this change replaces, for ``Changed.after``.

    Args:
        data: the sealed package.
    """
    if wanted.what == "queue":
        return package.queue
    if wanted.what == "priority":
        return package.priority
    if wanted.what == "start time":
        return AT_ONCE if due_us is None else due_us
    return _digest_of(sealer, package, data)


def _digest_of(sealer: Sealer, package: Package, data: bytes) -> str:
    """Return a digest of the arguments. It depends on SECRET_KEY, so that it does not reveal short
    hidden values.

    Args:
        data: the sealed package. Arguments that cannot be written as JSON are compared as they are
            pickled there. The pickles of equal values may differ, for example of sets.
    """
    try:
        written = codec.write(codec.encode([list(package.args), package.kwargs]))
    except codec.NotEncodable:
        written = sealer.pickled_arguments(data)
    return salted_hmac("stoker.jobs.change", written, algorithm="sha256").hexdigest()


def _call(
    settings: Settings, old: Package, wanted: Change
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the new arguments. Hidden values that an operator did not see stay as they are."""
    if wanted.arguments is not None:
        task = task_of(old)
        return changed_call(task, old.args, old.kwargs, wanted.arguments, settings.redact)
    args = old.args if wanted.args is None else restored(tuple(wanted.args), old.args)
    kwargs = old.kwargs if wanted.kwargs is None else restored(dict(wanted.kwargs), old.kwargs)
    refuse_other_function(old, args)
    return args, kwargs


def _needs_of_edited(old: Package, package: Package, own: Sequence[NewNeed]) -> Sequence[NewNeed]:
    """Return the guards that the job needs with its new arguments.

    Raises:
        ValueError: the guards or the unique key cannot be computed again, because they come from
            ``using()``, or from the task before a deploy.
    """
    if package.options.receives or package.options.each or package.options.about:
        raise ValueError("Its arguments come from the previous step, or are the calls of a map.")
    task = task_of(package)
    refuse_wrong_arguments(task, package.args, package.kwargs)
    before, after = (unique_of(task, one.args, one.kwargs) for one in (old, package))
    key_id = before and before.key_id
    is_same = key_id == (after and after.key_id)
    identity = old.options.identity
    if identity and not (is_same and key_id_of(identity) in (None, key_id)):
        raise ValueError(
            "The new arguments may give another unique key: cancel the job and enqueue another."
        )
    now = needs_of(task, old.args, old.kwargs)
    if [*map(_without_numbers, now)] != [*map(_without_numbers, own)]:
        raise ValueError(
            "Its guards come from using(), or the task had other guards when it was enqueued: "
            "cancel the job and enqueue another."
        )
    return needs_of(task, package.args, package.kwargs)


def _without_numbers(need: NewNeed) -> NewNeed:
    """Return a need without the numbers of its key, which the newest job decides anyway."""
    return need._replace(places=0, period_us=0, burst=0, retry_us=0)
