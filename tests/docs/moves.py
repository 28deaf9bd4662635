"""The table of moves in explanation/job-life.md, and how to make each of them happen."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from django.db.models import F

from stoker import queues
from stoker.brokers.contract import ClaimRequest, Return
from stoker.cluster.scheduler.scheduler import Upkeep
from stoker.jobs.cancel import sweep_requests
from stoker.jobs.outcomes import Cancelled, Crashed, TimedOut
from stoker.models import Claimed, Deferred
from stoker.setting_values import Retention

from .pages import DOCS
from .stand import Stand
from tests.app import guarded, tasks


@dataclass(frozen=True)
class Move:
    """A row of the table in explanation/job-life.md."""

    start: str
    event: str
    end: str
    rows: frozenset[str]
    attempts: str


def moves() -> list[Move]:
    text = (DOCS / "explanation" / "job-life.md").read_text()
    table = text.partition("<!-- the table of moves -->")[2].strip().partition("\n\n")[0]
    found = []
    for line in table.splitlines()[2:]:
        start, event, end, rows, attempts = (cell.strip() for cell in line.strip("|").split("|"))
        changes = re.findall(r"[-+~][a-z ]*[a-z]", rows)
        found.append(Move(start, event, end, frozenset(changes), attempts))
    return found


def changes_between(before: dict[str, Any], after: dict[str, Any]) -> frozenset[str]:
    signs = set()
    for name, rows in after.items():
        if len(rows) != len(before[name]):
            signs.add(("+" if len(rows) > len(before[name]) else "-") + name)
        elif rows != before[name]:
            signs.add(f"~{name}")
    return frozenset(signs)


def attempts_in(rows: dict[str, Any]) -> int | None:
    """Return the attempts recorded in the table where the job is."""
    for place in ("ready", "deferred", "blocked", "claimed", "job"):
        for row in rows[place]:
            return int(row["attempts"])
    return None


Prepare = Callable[[Stand], object]
Act = Callable[[Stand], object]


def ways() -> dict[tuple[str, str], tuple[Prepare, Act]]:
    """Return (start, event) -> what prepares the first state, and what causes the event."""

    def ready(task: Any, *args: Any) -> Prepare:
        return lambda stand: stand.enqueue(task, *args)

    def running(task: Any, *args: Any) -> Prepare:
        def prepare(stand: Stand) -> None:
            stand.enqueue(task, *args)
            stand.claim()

        return prepare

    def deferred(stand: Stand) -> None:
        stand.enqueue(tasks.nothing.using(run_after=3600))

    def due(stand: Stand) -> None:
        deferred(stand)
        Deferred.objects.update(due_us=1)

    def behind(task: Any) -> Prepare:
        """Let another job hold the lock that it needs."""

        def prepare(stand: Stand) -> None:
            stand.enqueue(guarded.enter)
            stand.claim()
            stand.other = stand.delivery
            stand.enqueue(task)

        return prepare

    def blocked(stand: Stand) -> None:
        behind(guarded.enter)(stand)
        stand.claim_in_vain()

    def skipped(stand: Stand) -> None:
        behind(guarded.enter_or_leave_it)(stand)
        stand.claim()

    def free_the_lock(stand: Stand) -> None:
        assert not stand.broker.settle([stand.other.lease])

    def ended(task: Any) -> Prepare:
        def prepare(stand: Stand) -> None:
            running(task)(stand)
            stand.finish(stand.run())

        return prepare

    def cancelled(stand: Stand) -> None:
        ready(nothing)(stand)
        cancel(stand)

    def spoiled(stand: Stand) -> None:
        running(tasks.nothing)(stand)
        stand.delivery = stand.delivery._replace(package=b"not a package")

    def unknown(stand: Stand) -> None:
        running(tasks.nothing)(stand)
        package = stand.executor._sealer.open(stand.delivery.package)
        sealed = stand.executor._sealer.seal(replace(package, task="shop.tasks.gone"))
        stand.delivery = stand.delivery._replace(package=sealed)

    def over(stand: Stand) -> None:
        running(tasks.nothing)(stand)
        Claimed.objects.update(leased_until_us=1)

    def lost(stand: Stand) -> None:
        running(tasks.nothing)(stand)
        Claimed.objects.update(lease_id=F("lease_id") - 1)

    def forget(stand: Stand) -> None:
        keep = Retention(successful_seconds=0, failed_seconds=0)
        settings = replace(stand.settings, keep_results=keep)
        Upkeep(stand.plan, settings, stand.broker, lambda: None).prune()

    def run(stand: Stand) -> None:
        stand.finish(stand.run())

    def run_unkept(stand: Stand) -> None:
        stand.finish(stand.run(), keep_results=Retention(successful_seconds=0))

    def run_without_grace(stand: Stand) -> None:
        stand.executor.settings = replace(stand.settings, unknown_task_grace_seconds=0)
        run(stand)

    def finish_stale(stand: Stand) -> None:
        assert stand.finish(stand.run()) == {stand.delivery.lease}

    def give_back(stand: Stand) -> None:
        delivery = stand.delivery
        assert not stand.broker.settle(
            again=[Return(delivery.lease, attempts=delivery.attempt - 1)]
        )

    def extend(stand: Stand) -> None:
        assert not stand.broker.extend([stand.delivery.lease], lease_seconds=120)

    def take_over(stand: Stand) -> None:
        holder = stand.plan.cluster_id
        assert (
            len(stand.broker.claim_expired(ClaimRequest(10, holder=holder, lease_seconds=60))) == 1
        )

    def cancel(stand: Stand) -> None:
        assert stand.result.cancel("not needed")

    def end_as_told(stand: Stand) -> None:
        stand.finish_as(Cancelled("not needed"))

    def fail_as_told(stand: Stand) -> None:
        cancel(stand)
        run(stand)

    def told_in_vain(stand: Stand) -> None:
        running(nothing)(stand)
        cancel(stand)
        give_back(stand)

    def see_to_requests(stand: Stand) -> None:
        assert sweep_requests(stand.settings) == 1

    def clear(_: Stand) -> None:
        assert queues.clear("default").done == 1

    def die(stand: Stand) -> None:
        stand.finish_as(Crashed("the worker process died", signal=9))

    def be_killed(stand: Stand) -> None:
        stand.finish_as(TimedOut("the task was killed", signal=9))

    nothing, once = tasks.nothing, tasks.nothing.using(max_attempts=1)
    late = tasks.nothing.using(expires=tasks.say_when.call())
    in_vain = (tasks.nothing.using(max_crashes=1),)
    return {
        ("none", "`enqueue`"): (lambda _: None, ready(nothing)),
        ("none", "`enqueue` with `run_after`"): (lambda _: None, deferred),
        ("DEFERRED", "its start time comes"): (due, Stand.promote),
        ("DEFERRED", "`result.cancel()`"): (deferred, cancel),
        ("READY", "`result.cancel()`"): (ready(nothing), cancel),
        ("READY", "a cluster claims it"): (ready(nothing), Stand.claim),
        ("none", "`enqueue` of a task with guards"): (lambda _: None, ready(guarded.enter)),
        ("READY", "another job has the place that it needs"): (
            behind(guarded.enter),
            Stand.claim_in_vain,
        ),
        ("READY", 'another job has the place that it needs, `on_busy="retry"`'): (
            behind(guarded.enter_or_come_back),
            Stand.claim_in_vain,
        ),
        ("READY", 'another job has the place that it needs, `on_busy="skip"`'): (
            behind(guarded.enter_or_leave_it),
            Stand.claim,
        ),
        ("BLOCKED", "its turn comes"): (blocked, free_the_lock),
        ("BLOCKED", "`result.cancel()`"): (blocked, cancel),
        ("RUNNING", 'the worker skips it (`on_busy="skip"`)'): (skipped, run),
        ("RUNNING", "the task with guards returns"): (running(guarded.enter), run),
        ("RUNNING", "the cluster extends its lease"): (running(nothing), extend),
        ("RUNNING", "the task returns"): (running(nothing), run),
        ("RUNNING", "the task returns, and successful results are not kept"): (
            running(nothing),
            run_unkept,
        ),
        ("RUNNING", "the task raises, attempts are left"): (running(tasks.fail), run),
        ("RUNNING", "the task raises, attempts are left, the delay is 0"): (
            running(tasks.ask_for_retry, 0),
            run,
        ),
        ("RUNNING", "the task raises, no attempts are left"): (running(tasks.fail_once), run),
        ("RUNNING", "the task raises an error that must not be retried"): (
            running(tasks.fail_unretried),
            run,
        ),
        ("RUNNING", "the return value cannot be kept"): (
            running(tasks.return_what_cannot_be_kept),
            run,
        ),
        ("RUNNING", "the task raises `Retry`, attempts are left"): (
            running(tasks.ask_for_retry, 60),
            run,
        ),
        ("RUNNING", "the task raises `Snooze`"): (running(tasks.snooze_until, 2.0**33), run),
        ("RUNNING", "the task raises `Cancel`"): (running(tasks.cancel_itself), run),
        ("RUNNING", "`result.cancel()`"): (running(nothing), cancel),
        ("RUNNING", "it ends or is killed after a request to cancel it"): (
            running(nothing),
            end_as_told,
        ),
        ("RUNNING", "it would be retried, but a request to cancel it is stored"): (
            running(tasks.ask_for_retry, 0),
            fail_as_told,
        ),
        ("READY", "a request to cancel it is stored, and upkeep finds the request"): (
            told_in_vain,
            see_to_requests,
        ),
        ("READY", "its queue is cleared"): (ready(nothing), clear),
        ("RUNNING", "its worker dies, attempts are left"): (running(nothing), die),
        ("RUNNING", "its worker dies, no attempts are left"): (running(once), die),
        ("RUNNING", "its worker dies for the last time that `max_crashes` allows"): (
            running(*in_vain),
            die,
        ),
        ("RUNNING", "it is killed at its time-out, attempts are left"): (
            running(nothing),
            be_killed,
        ),
        ("RUNNING", "it is killed at its time-out, no attempts are left"): (
            running(once),
            be_killed,
        ),
        ("RUNNING", "it is released before it started"): (running(nothing), give_back),
        ("RUNNING", "it has expired before it could start"): (running(late), run),
        ("RUNNING", "its package cannot be opened"): (spoiled, run),
        ("RUNNING", "its task is not known here, and the job is young"): (unknown, run),
        ("RUNNING", "its task is not known here, and the grace period is over"): (
            unknown,
            run_without_grace,
        ),
        ("RUNNING", "its lease ends, and a cluster takes it over"): (over, take_over),
        ("RUNNING", "a worker reports an outcome with an old lease id"): (
            lost,
            finish_stale,
        ),
        ("SUCCESSFUL", "its result is kept no longer"): (ended(nothing), forget),
        ("FAILED", "its result is kept no longer"): (ended(tasks.fail_once), forget),
        ("CANCELLED", "its result is kept no longer"): (
            cancelled,
            forget,
        ),
    }
