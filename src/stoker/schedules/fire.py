"""Fire due ticks of schedules. Firing a tick enqueues one job. The job, the tick's row and the
schedule's next moment are written in one transaction.

Several clusters may try to fire the same tick. The first one that locks the schedule's row fires
it; the others then find that the row has changed, and do nothing. On databases without row locks,
the row is updated only if it has not changed since it was read, and the unique index of ticks
refuses a second row for the same tick.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import F

from stoker.conf import Settings
from stoker.exceptions import DuplicateJob, InvalidSchedule
from stoker.jobs.enqueue import Prepared, enqueue_prepared
from stoker.jobs.results import Result
from stoker.jobs.running import current
from stoker.jobs.sealing import carrying
from stoker.models import Job, Schedule, Tick
from stoker.models.schedule import FiredTick
from stoker.models.tick import insert_ticks
from stoker.signals import call_project, post_tick, tell
from stoker.store.transactions import after_commit
from stoker.store.written import DatabaseNow, database_now_us
from stoker.tasks.registry import task_of
from stoker.tasks.task import Task
from stoker.values.cron import zone_named
from stoker.values.text import stored_text
from stoker.values.ticks import Course, Missed, as_moment, plan

from .rows import opened, variant

_Call = tuple[Any, tuple[Any, ...], dict[str, Any], AbstractContextManager[None]]


class Overtaken(Exception):
    """Another cluster has fired the tick first; the transaction is rolled back."""


@dataclass(frozen=True, slots=True)
class Fired:
    """The outcome of one tick, or of several missed ones."""

    schedule: Schedule
    outcome: str
    moment_us: int
    job_id: UUID | None
    late_us: int
    """Delay after the due time, in microseconds of the database's clock."""
    count: int = 1
    """Number of ticks. Missed ticks are told together, with the moment of the first one."""


def _course_of(row: Schedule) -> Course:
    try:
        return row.course
    except ValueError as error:
        raise InvalidSchedule(f"Its rule cannot be read: {error}.") from None


def _tick(
    row: Schedule,
    moment_us: int,
    outcome: str,
    fired_us: int,
    count: int = 1,
    job_id: UUID | None = None,
) -> Tick:
    return Tick(
        schedule_id=row.pk,
        moment_us=moment_us,
        outcome=outcome,
        job_id=job_id,
        fired_us=fired_us,
        count=count,
    )


class _Progress:
    """The changes of one transaction to a schedule.

    Args:
        following_us: the next moment; None = the schedule has ended.
    """

    def __init__(self, row: Schedule, following_us: int | None) -> None:
        self._row = row
        self._following_us = following_us
        self._fired = 0
        self.ticks: list[Tick] = []
        self.replaced_us: int | None = None
        """The tick of an earlier transaction that a newer one has replaced."""
        self.changes: dict[str, Any] = {}

    def record(
        self, moment_us: int, outcome: str, count: int = 1, job_id: UUID | None = None
    ) -> None:
        now_us = self._row.now_us  # type: ignore[attr-defined] # annotated
        self.ticks.append(_tick(self._row, moment_us, outcome, now_us, count, job_id))

    def skip(self, moment_us: int) -> None:
        """Mark a tick that waited for the previous job as skipped."""
        for tick in self.ticks:
            if tick.moment_us == moment_us:
                tick.outcome = Tick.Outcome.SKIPPED
                return
        self.replaced_us = moment_us

    def told(self, now_us: int) -> list[Fired]:
        """Return the outcome of each tick, in the order of their moments."""
        ticks = list(self.ticks)
        if self.replaced_us is not None:
            ticks.insert(0, _tick(self._row, self.replaced_us, Tick.Outcome.SKIPPED, now_us))
        return [_fired(self._row, tick, now_us) for tick in ticks]

    def note_job(self, moment_us: int, job_id: UUID) -> None:
        self._fired += 1
        if self._row.repeats_left > 0:
            self._row.repeats_left -= 1
        self._row.last_job_id = job_id
        self.changes |= {"last_job_id": job_id, "last_moment_us": moment_us}

    def columns(self) -> dict[str, Any]:
        row, following_us = self._row, self._following_us
        if row.repeats_left == 0:
            following_us = None
        due_us = None if following_us is None else row.course.due(following_us)
        changes = {"moment_us": following_us, "due_us": due_us, **self.changes}
        if row.problem:
            changes["problem"] = ""
        if self._fired:
            changes |= {
                "fired_count": F("fired_count") + self._fired,
                "last_fired_us": DatabaseNow(),
                "repeats_left": row.repeats_left,
            }
        return changes


@dataclass(frozen=True, slots=True)
class _DueTick:
    """A due tick that can be fired by enqueueing its job, without further checks."""

    row: Schedule
    moment_us: int
    missed: Missed | None
    next_us: int | None

    @classmethod
    def of(cls, row: Schedule, now_us: int) -> _DueTick | None:
        """Return the due tick of a locked schedule. Return None if none is due, or if it needs
        more than an enqueue."""
        if row.is_paused or row.due_us is None or row.moment_us is None or row.due_us > now_us:
            return None
        if row.problem or row.held_us is not None or row.repeats_left == 0:
            return None
        zone_named(row.zone)  # other hosts may know it
        decided = plan(_course_of(row), row.misfires, row.moment_us, now_us)
        if len(decided.fire_us) != 1:
            return None
        return cls(row, decided.fire_us[0], decided.missed, decided.next_us)

    def ticks(self, job_id: UUID, now_us: int) -> list[Tick]:
        """Return the rows of the tick and of the missed ticks before it."""
        row, missed = self.row, self.missed
        ticks = [_tick(row, self.moment_us, Tick.Outcome.FIRED, now_us, job_id=job_id)]
        if missed is not None:
            of_missed = Tick.Outcome.MISSED
            ticks.insert(0, _tick(row, missed.first_us, of_missed, now_us, missed.count))
        return ticks

    def advance(self, job_id: UUID) -> FiredTick:
        """Return the changed fields of the schedule's row."""
        row, next_us, left = self.row, self.next_us, self.row.repeats_left
        if left > 0:
            left -= 1
        if left == 0:
            next_us = None
        due_us = None if next_us is None else row.course.due(next_us)
        assert row.due_us is not None
        assert row.moment_us is not None
        missed = 0 if self.missed is None else self.missed.count
        seen = (row.moment_us, row.due_us)
        return FiredTick(row.pk, job_id, self.moment_us, missed, *seen, next_us, due_us, left)


class Firing:
    """Fires the schedules of one store."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._alias = settings.database
        self._schedules = Schedule.objects.using(self._alias)
        self._ticks = Tick.objects.using(self._alias)

    def fire(self, schedule_id: UUID, now_us: int | None = None) -> Fired | None:
        """Fire the tick that is due, if it is still due.

        Args:
            now_us: replaces the database's clock, for tests.

        Returns:
            The outcome of the last tick, if several were due. None if another cluster has fired it,
            or no tick is due any more.

        Raises: any error of the schedule or of the database.
        """
        try:
            with transaction.atomic(using=self._alias):
                fired = self._fire(schedule_id, now_us)
        except Overtaken:
            return None
        except IntegrityError:
            if not self._step_over(schedule_id, now_us):
                raise
            return None
        for one in fired:
            self._tell(one)
        return fired[-1] if fired else None

    def fire_together(self, schedule_ids: Collection[UUID], now_us: int | None = None) -> set[UUID]:
        """Fire the due ticks of many schedules in one transaction.

        Skip schedules whose ticks need more than an enqueue: several ticks at once, a previous job
        that has not ended, an earlier problem, a task with its own ``enqueue``.

        Args:
            now_us: replaces the database's clock, for tests.

        Returns:
            The schedules that were fired.

        Raises: any error of one of the schedules or of the database; none was fired then.
        """
        with transaction.atomic(using=self._alias):
            held = self._schedules.hold_all(schedule_ids)
            now = database_now_us(self._alias) if now_us is None else now_us
            ours = [row for row in held if row.overlap != Schedule.Overlap.ALLOW]
            last = [row.last_job_id for row in ours if row.last_job_id is not None]
            alive = Job.objects.using(self._alias).unended(last)
            simple = [row for row in held if row.last_job_id not in alive]
            found = [one for row in simple if (one := _DueTick.of(row, now)) is not None]
            calls = [(one, self._call_of(one.row, one.moment_us)) for one in found]
            calls = [(one, call) for one, call in calls if type(call[0]).enqueue is Task.enqueue]
            due = [one for one, _ in calls]
            results = enqueue_prepared(self._settings, [self._prepared(call) for _, call in calls])
            jobs = [(one, UUID(result.id)) for one, result in zip(due, results, strict=True)]
            ticks = [(one.row, tick) for one, job_id in jobs for tick in one.ticks(job_id, now)]
            insert_ticks(self._ticks, [tick for _, tick in ticks])
            if not self._schedules.advance_all([one.advance(job_id) for one, job_id in jobs]):
                raise Overtaken
        for row, tick in ticks:
            self._tell(_fired(row, tick, now))
        return {one.row.pk for one in due}

    def release(self, schedule_id: UUID) -> Fired | None:
        """Fire the tick that waits for the previous job, if that job has ended."""
        try:
            with transaction.atomic(using=self._alias):
                row = self._schedules.hold(schedule_id)
                if row is None or row.held_us is None or row.is_paused or self._overlaps(row):
                    return None
                moment_us = row.held_us
                progress = _Progress(row, row.moment_us)
                job_id, outcome = None, str(Tick.Outcome.SKIPPED)
                if row.repeats_left != 0:
                    job_id, outcome = self._enqueue(row, moment_us)
                self._ticks.filter(schedule_id=row.pk, moment_us=moment_us).update(
                    outcome=outcome, job_id=job_id, fired_us=DatabaseNow()
                )
                if job_id is not None:
                    progress.note_job(moment_us, job_id)
                self._advance(row, {**progress.columns(), "held_us": None})
        except Overtaken:
            return None
        fired = Fired(row, outcome, moment_us, job_id, 0)
        _send(fired)
        return fired

    def fire_by_hand(self, schedule_id: UUID, by: str) -> Result[Any] | None:
        """Fire the schedule now, regardless of its rule. The next tick is not affected."""
        with transaction.atomic(using=self._alias):
            row = self._schedules.filter(pk=schedule_id).first()
            if row is None:
                return None
            now_us = database_now_us(self._alias)
            result = self._call(row, now_us)
            job_id = UUID(result.id)
            self._ticks.create(
                schedule_id=row.pk,
                moment_us=now_us,
                outcome=Tick.Outcome.MANUAL,
                job_id=job_id,
                fired_us=DatabaseNow(),
                by=stored_text(by, 150),
            )
            self._schedules.filter(pk=row.pk).update(
                last_fired_us=DatabaseNow(), fired_count=F("fired_count") + 1
            )
            if not self._overlaps(row):  # otherwise the next tick would not see the running job
                seen = self._schedules.filter(pk=row.pk, last_job_id=row.last_job_id)
                seen.update(last_job_id=job_id, last_moment_us=now_us)
            fired = Fired(row, Tick.Outcome.MANUAL, now_us, job_id, 0)
            after_commit(self._alias, partial(_send, fired))
        return result

    def _fire(self, schedule_id: UUID, now_us: int | None) -> list[Fired]:
        row = self._schedules.hold(schedule_id)
        if row is None or row.is_paused or row.due_us is None or row.moment_us is None:
            return []
        now: int = row.now_us if now_us is None else now_us  # type: ignore[attr-defined] # annotated
        if row.due_us > now:
            return []
        if row.repeats_left == 0:
            self._advance(row, {"moment_us": None, "due_us": None})
            return []
        zone_named(row.zone)  # other hosts may know it
        decided = plan(_course_of(row), row.misfires, row.moment_us, now)
        progress = _Progress(row, decided.next_us)
        if decided.missed is not None:
            progress.record(decided.missed.first_us, Tick.Outcome.MISSED, decided.missed.count)
            progress.changes["missed_count"] = F("missed_count") + decided.missed.count
        for moment_us in decided.fire_us:
            if row.repeats_left == 0:
                break
            self._carry_out(row, moment_us, progress)
        insert_ticks(self._ticks, progress.ticks)
        self._advance(row, progress.columns())
        return progress.told(now)

    def _carry_out(self, row: Schedule, moment_us: int, progress: _Progress) -> None:
        """Enqueue the job. If the previous job has not ended, hold or skip the tick instead."""
        if not self._overlaps(row):
            job_id, outcome = self._enqueue(row, moment_us)
            if job_id is not None:
                self._replace_held(row, progress, None)
                progress.note_job(moment_us, job_id)
            progress.record(moment_us, outcome, job_id=job_id)
            return
        if row.overlap == Schedule.Overlap.SKIP:
            progress.record(moment_us, Tick.Outcome.SKIPPED)
            return
        self._replace_held(row, progress, moment_us)
        progress.record(moment_us, Tick.Outcome.HELD)

    def _replace_held(self, row: Schedule, progress: _Progress, moment_us: int | None) -> None:
        """Hold this tick, or none, and skip the earlier one that was held."""
        held_us = progress.changes.get("held_us", row.held_us)
        if held_us is not None:
            self._ticks.filter(schedule_id=row.pk, moment_us=held_us).update(
                outcome=Tick.Outcome.SKIPPED
            )
            progress.skip(held_us)
        if held_us != moment_us:
            progress.changes["held_us"] = moment_us

    def _enqueue(self, row: Schedule, moment_us: int) -> tuple[UUID | None, str]:
        try:
            result = self._call(row, moment_us)
        except DuplicateJob:
            return None, Tick.Outcome.SKIPPED
        return UUID(result.id), Tick.Outcome.FIRED

    def _call(self, row: Schedule, moment_us: int) -> Result[Any]:
        task, args, kwargs, mark = self._call_of(row, moment_us)
        with mark:
            result: Result[Any] = task.enqueue(*args, **kwargs)
        return result

    def _prepared(self, call: _Call) -> Prepared:
        task, args, kwargs, mark = call
        with mark:
            return Prepared(self._settings, task, args, kwargs)

    def _call_of(self, row: Schedule, moment_us: int) -> _Call:
        """Return the task of a schedule, its arguments, and the context manager that marks its
        jobs."""
        package = opened(self._settings, row)
        task = variant(self._settings, task_of(package), row.queue, row.priority)
        moment = as_moment(moment_us).astimezone(zone_named(row.zone))
        kwargs = dict(package.kwargs)
        if row.moment_as:
            kwargs[row.moment_as] = moment
        return task, package.args, kwargs, marked(row, moment)

    def _advance(self, row: Schedule, changes: dict[str, Any]) -> None:
        if not self._schedules.advance(row, **changes):
            raise Overtaken

    def _overlaps(self, row: Schedule) -> bool:
        if row.overlap == Schedule.Overlap.ALLOW or row.last_job_id is None:
            return False
        return Job.objects.using(self._alias).filter(pk=row.last_job_id, status=None).exists()

    def _step_over(self, schedule_id: UUID, now_us: int | None) -> bool:
        """Advance past a tick that was fired before the schedule was set back. Return False if
        there is none."""
        with transaction.atomic(using=self._alias):
            row = self._schedules.hold(schedule_id)
            if row is None or row.moment_us is None or row.due_us is None:
                return True
            now: int = row.now_us if now_us is None else now_us  # type: ignore[attr-defined] # annotated
            decided = plan(row.course, row.misfires, row.moment_us, now)
            known = [*decided.fire_us, row.moment_us]
            if not self._ticks.filter(schedule_id=row.pk, moment_us__in=known).exists():
                return False
            following = row.course.after(row.moment_us)
            due_us = None if following is None else row.course.due(following)
            self._schedules.advance(row, moment_us=following, due_us=due_us)
        return True

    def _tell(self, fired: Fired) -> None:
        name = fired.schedule.name
        tell("tick", name=name, outcome=fired.outcome, seconds=fired.late_us / 1e6)
        if fired.outcome == Tick.Outcome.MISSED:
            tell("ticks_missed", name=name)
        _send(fired)


def _fired(row: Schedule, tick: Tick, now_us: int) -> Fired:
    due_us = row.due_us if tick.moment_us == row.moment_us else None
    late_us = now_us - (row.course.due(tick.moment_us) if due_us is None else due_us)
    return Fired(row, tick.outcome, tick.moment_us, tick.job_id, late_us, tick.count)


def _send(fired: Fired) -> None:
    if post_tick.receivers:
        call_project("signal post_tick", partial(post_tick.send_robust, Firing, fired=fired))


NAME, MOMENT, ZONE = "stoker.schedule", "stoker.moment", "stoker.zone"


def scheduled_moment() -> datetime | None:
    """Return the moment of the tick for which a schedule enqueued the current job.

    It is an aware datetime in the schedule's time zone, the same for every attempt, however late
    the job runs.

    Returns:
        None outside of a job, and in a job that no schedule enqueued.
    """
    running = current.get()
    if running is None or MOMENT not in running.metadata:
        return None
    moment = datetime.fromisoformat(running.metadata[MOMENT])
    return moment.astimezone(zone_named(running.metadata.get(ZONE, "UTC")))


def marked(row: Schedule, moment: datetime) -> AbstractContextManager[None]:
    """Add the schedule and its moment to the metadata of jobs that are enqueued inside the block.

    If the next tick depends on their end, they wait in the store: a broker outside it does not tell
    whether a job has ended.
    """
    more = {NAME: row.name, MOMENT: moment.isoformat(), ZONE: row.zone}
    return carrying(more, in_store=row.overlap != Schedule.Overlap.ALLOW)
