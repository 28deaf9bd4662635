"""Mistakes planted in Stoker that the checker has to find.

Each replaces a function of Stoker when Django starts, in clusters and users alike. Some add a pause
that makes the harm likely, so that a few faults are enough to find it.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.crash.faults import FaultPlan, long_stops, plan


@dataclass(frozen=True)
class Mistake:
    """A possible mistake, and the kinds of findings that show it."""

    plant: Callable[[], None]
    kinds: frozenset[str]
    """A finding of one of these kinds counts as found."""
    broker: str = "postgres"
    fault_plan: FaultPlan = plan


MISTAKES: dict[str, Mistake] = {}


def mistake(
    name: str, *kinds: str, broker: str = "postgres", fault_plan: FaultPlan = plan
) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Add a mistake under this name."""

    def add(plant: Callable[[], None]) -> Callable[[], None]:
        MISTAKES[name] = Mistake(plant, frozenset(kinds), broker, fault_plan)
        return plant

    return add


def replace(owner: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    """Replace a function; the new one gets the old one as first argument."""
    right = getattr(owner, name)

    def put(wrong: Callable[..., Any]) -> None:
        @functools.wraps(right)
        def replaced(*args: Any, **kwargs: Any) -> Any:
            return wrong(right, *args, **kwargs)

        setattr(owner, name, replaced)

    return put


@mistake("a job is acked before it is recorded", "lost")
def ack_before_record() -> None:
    from stoker.brokers.orm.broker import OrmBroker
    from stoker.jobs.record import Recorder

    acked = threading.local()

    @replace(Recorder, "_record_inside")
    def record_inside(right: Any, self: Any, batch: Any, recorded: Any) -> Any:
        acked.stale = None
        acked.stale = self._broker.settle(batch.over().leases, ())
        time.sleep(0.2)
        try:
            return right(self, batch, recorded)
        finally:
            acked.stale = None

    @replace(OrmBroker, "settle")
    def settle(right: Any, self: Any, *args: Any, **options: Any) -> Any:
        stale = getattr(acked, "stale", None)
        return right(self, *args, **options) if stale is None else stale


@mistake("an attempt that crashed is not counted", "miscounted")
def crashes_uncounted() -> None:
    from stoker.jobs import record as finish

    @replace(finish, "_return")
    def give_back(right: Any, verdict: Any) -> Any:
        back = right(verdict)
        if verdict.crashes:
            back = dataclasses.replace(back, attempts=back.attempts - 1)
        return back


@mistake(
    "a lost lease is not noticed",
    "overlapping",
    "doubled",
    "miscounted",
    fault_plan=long_stops,
)
def extend_whatever() -> None:
    from stoker.brokers.contract import Extension
    from stoker.brokers.orm.broker import OrmBroker
    from stoker.cluster import crew
    from stoker.cluster.pusher import pusher
    from stoker.cluster.worker import worker

    @replace(OrmBroker, "extend_unlocked")
    def extend(right: Any, self: Any, leases: Any, **options: Any) -> Any:
        right(self, leases, **options)
        return Extension(set(), set())

    for module in (crew, pusher, worker):
        replace(module, "is_fenced")(lambda _right, *_args: False)


@mistake(
    "an outcome is recorded though its lease is lost",
    "doubled",
    "lost",
    "miscounted",
    fault_plan=long_stops,
)
def stale_outcomes() -> None:
    from stoker.brokers.orm.broker import OrmBroker

    @replace(OrmBroker, "settle")
    def settle(right: Any, self: Any, *args: Any, **options: Any) -> Any:
        right(self, *args, **options)
        return set()


@mistake("a lock is released because of its age", "overlapping")
def locks_by_age() -> None:
    from stoker.models.need import NeedQuerySet
    from stoker.store.engines.rows import HOLDER, GuardRows

    since: dict[Any, float] = {}

    def is_young(key: Any, job: Any) -> bool:
        now = time.monotonic()
        return now - since.setdefault((key, job), now) < 0.1

    @replace(NeedQuerySet, "holders")
    def holders(right: Any, self: Any, key_ids: Any) -> Any:
        found = right(self, key_ids)
        return {key: {job for job in jobs if is_young(key, job)} for key, jobs in found.items()}

    @replace(GuardRows, "guard_state")
    def guard_state(right: Any, self: Any, *asked: Any) -> Any:
        rows = right(self, *asked)
        return [row for row in rows if row[0] != HOLDER or is_young(row[1], row[2])]


@mistake("a job runs before the transaction commits", "early")
def run_before_commit() -> None:
    from django.db import connections

    from stoker.brokers.orm.broker import OrmBroker

    @replace(OrmBroker, "enqueue")
    def enqueue(right: Any, self: Any, messages: Any) -> Any:
        def alone() -> None:
            try:
                right(self, messages)
            finally:
                connections[self.alias].close()

        thread = threading.Thread(target=alone)
        thread.start()
        thread.join()


@mistake("a job waits for a second less than it should", "early")
def a_second_early() -> None:
    from stoker.brokers.orm.broker import OrmBroker

    @replace(OrmBroker, "enqueue")
    def enqueue(right: Any, self: Any, messages: Any) -> None:
        right(
            self,
            [
                one
                if one.run_after is None
                else dataclasses.replace(one, run_after=one.run_after - 1)
                for one in messages
            ],
        )


@mistake("two clusters fire the same tick", "ticks")
def ticks_twice() -> None:
    from stoker.models import Schedule
    from stoker.models.schedule import ScheduleQuerySet
    from stoker.schedules import fire as firing
    from stoker.store.written import database_now_us

    @replace(ScheduleQuerySet, "hold")
    def hold(_right: Any, self: Any, schedule_id: Any) -> Any:
        row = Schedule.objects.using(self.db).filter(pk=schedule_id).first()
        if row is not None:
            row.now_us = database_now_us(self.db)
            time.sleep(0.1)
        return row

    @replace(ScheduleQuerySet, "hold_all")
    def hold_all(_right: Any, self: Any, schedule_ids: Any) -> Any:
        rows = list(Schedule.objects.using(self.db).filter(pk__in=schedule_ids))
        time.sleep(0.1)
        return rows

    @replace(ScheduleQuerySet, "advance_all")
    def advance_all(right: Any, self: Any, ticks: Any) -> bool:
        right(self, ticks)
        return True

    @replace(ScheduleQuerySet, "advance")
    def advance(_right: Any, self: Any, seen: Any, **values: Any) -> bool:
        return bool(self.filter(pk=seen.pk).update(**values))

    replace(firing, "insert_ticks")(lambda _right, *_args: None)


@mistake("an enqueue whose answer was lost is repeated", "doubled")
def enqueue_again() -> None:
    from django.db import connection

    from stoker.backend import StokerBackend
    from stoker.exceptions import BrokerUnavailable

    @replace(StokerBackend, "enqueue")
    def enqueue(right: Any, self: Any, *args: Any) -> Any:
        try:
            return right(self, *args)
        except BrokerUnavailable:
            if connection.in_atomic_block:
                raise
            connection.close()
            time.sleep(1)
            return right(self, *args)


@mistake("leases that ran out are not taken over", "lost")
def no_rescue() -> None:
    from stoker.brokers.orm.broker import OrmBroker

    replace(OrmBroker, "claim_expired")(lambda _right, _self, _request: [])
    replace(OrmBroker, "expire_holder")(lambda _right, _self, _holder: 0)


@mistake("a cluster waits for half a minute after an error of the database", "stalled")
def long_waits() -> None:
    from stoker.store.engines import sessions

    sessions.FIRST_PAUSE_SECONDS = sessions.LONGEST_PAUSE_SECONDS = 30.0
