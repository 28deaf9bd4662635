"""Watermarks: a claim starts where the last one stopped, and still finds every job."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest
from django.db import connection, connections, transaction

from stoker.brokers.contract import Broker, ClaimRequest, Delivery, Return
from stoker.brokers.orm import claim as watermarks
from stoker.models import Ready
from stoker.store.engines import engine_of
from stoker.store.written import statement
from stoker.values.ids import new_job_id

from tests.conformance.stands import OrmStand, message
from tests.conformance.test_plans import nodes

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _as_in_a_cluster(lasting_watermarks: None) -> None:
    """Let watermarks be valid as long as in a cluster, unless a test says otherwise."""


@pytest.fixture
def stand() -> OrmStand:
    return OrmStand()


@pytest.fixture
def good(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep marks valid until a test says otherwise."""
    monkeypatch.setattr(watermarks, "SHARE", 1e12)
    monkeypatch.setattr(watermarks, "LONGEST_SECONDS", 1e9)
    monkeypatch.setattr(watermarks, "DEAR", 0.0001)
    monkeypatch.setattr(watermarks, "NEW_QUEUES_SECONDS", 0.0)


@pytest.fixture
def bad(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a full scan always due."""
    monkeypatch.setattr(watermarks, "LONGEST_SECONDS", 0.0)


def enqueue(broker: Broker, *job_ids: UUID, **options: Any) -> list[UUID]:
    messages = [message(job_id=job_id, **options) for job_id in job_ids or [new_job_id()]]
    broker.enqueue(messages)
    return [one.job_id for one in messages]


def claim(
    stand: OrmStand, limit: int = 1, *queues: str, broker: Broker | None = None
) -> list[UUID]:
    return [one.job_id for one in deliveries(stand, limit, *queues, broker=broker)]


def deliveries(
    stand: OrmStand, limit: int, *queues: str, broker: Broker | None = None
) -> list[Delivery]:
    chosen = broker or stand.broker
    return chosen.claim(ClaimRequest(limit, holder=stand.holder, lease_seconds=60, queues=queues))


@pytest.mark.usefixtures("good")
class TestWithMarks:
    """A job behind a mark is found at the latest by the claim that would find nothing else."""

    def test_job_committed_late_is_found(self, stand: OrmStand) -> None:
        older = new_job_id()
        younger = enqueue(stand.broker, *[new_job_id() for _ in range(3)])
        assert claim(stand) == younger[:1]
        enqueue(stand.another(), older)
        assert {*claim(stand), *claim(stand), *claim(stand)} == {older, *younger[1:]}
        assert claim(stand) == []

    def test_new_queues_are_served_by_priority(self, stand: OrmStand) -> None:
        """Their names sort before, between and after the known ones, two of them side by side."""
        enqueue(stand.broker, *[new_job_id() for _ in range(4)], queue="m")
        enqueue(stand.broker, new_job_id(), queue="p", priority=-1)
        claim(stand, 2)  # from here on there are marks
        (first,) = enqueue(stand.another(), queue="z", priority=3)
        second, third = (enqueue(stand.another(), queue=name, priority=2)[0] for name in "no")
        (fourth,) = enqueue(stand.another(), queue="a", priority=1)
        assert claim(stand, 4) == [first, second, third, fourth]

    def test_new_queues_that_are_passed_over_are_not_served(self, stand: OrmStand) -> None:
        known = enqueue(stand.broker, new_job_id(), new_job_id(), queue="known")
        assert claim(stand) == known[:1]
        enqueue(stand.another(), queue="other", priority=1)
        found = stand.broker.claim(
            ClaimRequest(1, holder=stand.holder, lease_seconds=60, passed_over=["other"])
        )
        assert [one.job_id for one in found] == known[1:]

    def test_job_locked_by_another_transaction_is_claimed_after_its_end(
        self, stand: OrmStand
    ) -> None:
        if not connection.features.has_select_for_update_skip_locked:
            pytest.skip("This database does not skip locked rows.")
        first, second = enqueue(stand.broker, new_job_id(), new_job_id())
        with locked(first):
            assert claim(stand) == [second]
            assert claim(stand) == []
        assert claim(stand) == [first]

    def test_released_job_is_claimed_before_younger_jobs(self, stand: OrmStand) -> None:
        enqueue(stand.broker, *[new_job_id() for _ in range(4)])
        (first,) = deliveries(stand, 1)
        (second,) = deliveries(stand, 1)
        stand.broker.settle(again=[Return(first.lease, attempts=0)])
        assert claim(stand) == [first.job_id]
        assert second.job_id not in claim(stand, 5)

    def test_job_released_by_another_process_is_found(self, stand: OrmStand) -> None:
        enqueue(stand.broker, new_job_id(), new_job_id())
        (first,) = deliveries(stand, 1)
        stand.another().settle(again=[Return(first.lease, attempts=1)])
        assert {*claim(stand), *claim(stand)} >= {first.job_id}

    def test_due_deferred_job_is_claimed_before_younger_jobs(self, stand: OrmStand) -> None:
        (early,) = enqueue(stand.broker, run_after=stand.now() + 60)
        younger = enqueue(stand.broker, *[new_job_id() for _ in range(3)])
        assert claim(stand) == younger[:1]
        stand.advance(120)
        stand.broker._due = watermarks.DueTimes("default")  # type: ignore[attr-defined] # it looks again
        assert claim(stand) == [early]

    def test_idle_claims_read_the_due_times_once_each(
        self, stand: OrmStand, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(watermarks, "TRUST_SECONDS", 600.0)
        enqueue(stand.broker, run_after=stand.now() + 500)
        readings: list[str] = []

        def note(execute: Callable[..., object], sql: object, *arguments: object) -> object:
            if str(sql) == statement("what_is_due", now=engine_of("default").now_sql):
                readings.append(str(sql))
            return execute(sql, *arguments)

        with connection.execute_wrapper(note):
            for _ in range(3):  # the first one looks before it claims, too
                assert claim(stand) == []
                assert stand.broker.next_due_seconds() == pytest.approx(500, abs=60)
        assert len(readings) == 2 + 1 + 1

    def test_deferred_job_committed_late_is_found(self, stand: OrmStand) -> None:
        for _ in range(2):
            enqueue(stand.broker, run_after=stand.now() - 1)
            enqueue(stand.broker)
            assert len(claim(stand, 5)) == 2
        enqueue(stand.another(), run_after=stand.now() - 60)
        assert len(claim(stand, 5)) == 1
        assert claim(stand) == []

    def test_due_job_of_a_queue_not_served_stays_there(self, stand: OrmStand) -> None:
        enqueue(stand.broker, new_job_id(), new_job_id())
        enqueue(stand.broker, run_after=stand.now() + 60, queue="mail")
        claim(stand, 1, "default")
        stand.advance(120)
        assert len(claim(stand, 5, "default")) == 1
        assert claim(stand, 5, "default") == []
        assert len(claim(stand, 5, "mail")) == 1

    def test_higher_priority_is_claimed_first(self, stand: OrmStand) -> None:
        enqueue(stand.broker, *[new_job_id() for _ in range(4)], priority=1)
        claim(stand, 2)
        for priority in (100, -100, 0, 2):
            enqueue(stand.broker, priority=priority)
        found = deliveries(stand, 10)
        assert [one.priority for one in found] == [100, 2, 1, 1, 0, -100]

    def test_each_priority_has_its_own_mark(self, stand: OrmStand) -> None:
        for priority in (0, 5, -5):
            enqueue(stand.broker, *[new_job_id() for _ in range(3)], priority=priority)
        claim(stand, 8)
        more = [enqueue(stand.broker, priority=priority)[0] for priority in (-5, 0, 5)]
        found = deliveries(stand, 10)
        assert [one.priority for one in found] == [5, 0, -5, -5]
        assert {one.job_id for one in found} >= set(more)

    def test_limit_counts_over_all_priorities(self, stand: OrmStand) -> None:
        for priority in (3, 2, 1):
            enqueue(stand.broker, *[new_job_id() for _ in range(5)], priority=priority)
        claim(stand, 11)
        for priority in (3, 2, 1):
            enqueue(stand.broker, *[new_job_id() for _ in range(2)], priority=priority)
        assert [one.priority for one in deliveries(stand, 3)] == [3, 3, 2]

    def test_new_queue_is_found(self, stand: OrmStand) -> None:
        enqueue(stand.broker, new_job_id(), new_job_id())
        claim(stand)
        (mail,) = enqueue(stand.broker, queue="mail")
        assert mail in {*claim(stand), *claim(stand)}

    def test_queue_that_was_passed_over_is_found_again(self, stand: OrmStand) -> None:
        enqueue(stand.broker, *[new_job_id() for _ in range(3)])
        first = stand.broker.claim(ClaimRequest(1, holder=stand.holder, lease_seconds=60))
        passed = stand.broker.claim(
            ClaimRequest(9, holder=stand.holder, lease_seconds=60, passed_over=["default"])
        )
        assert (len(first), passed) == (1, [])
        assert len(claim(stand, 9)) == 2

    def test_new_process_starts_without_marks(self, stand: OrmStand) -> None:
        """Marks are kept in memory only."""
        older = new_job_id()
        enqueue(stand.broker, *[new_job_id() for _ in range(3)])
        claim(stand, 2)
        enqueue(stand.another(), older)
        assert claim(stand, broker=stand.another())[0] == older

    def test_random_actions_lose_no_job(self, stand: OrmStand, request: Any) -> None:
        """Two processes claim, release and enqueue with ids of any age: each job comes."""
        choose = random.Random(request.config.option.seed)
        brokers = [stand.broker, stand.another()]
        pool = [new_job_id() for _ in range(120)]
        choose.shuffle(pool)
        waiting: set[UUID] = set()
        held: list[Delivery] = []
        for _ in range(150):
            broker = choose.choice(brokers)
            match choose.choice(["enqueue", "claim", "claim", "release", "ack"]):
                case "enqueue" if pool:
                    options = {"queue": choose.choice("abc"), "priority": choose.choice([-1, 0, 1])}
                    waiting.update(enqueue(broker, pool.pop(), **options))
                case "claim":
                    found = deliveries(stand, choose.choice([1, 3]), broker=broker)
                    assert {one.job_id for one in found} <= waiting
                    assert found or not waiting, "a waiting job was not found"
                    waiting -= {one.job_id for one in found}
                    held += found
                case "release" if held:
                    back = held.pop(choose.randrange(len(held)))
                    broker.settle(again=[Return(back.lease, attempts=0)])
                    waiting.add(back.job_id)
                case "ack" if held:
                    broker.settle([held.pop().lease])
        while found := deliveries(stand, 7):
            waiting -= {one.job_id for one in found}
        assert not waiting


@pytest.mark.usefixtures("bad")
def test_full_scan_finds_an_older_job_first(stand: OrmStand) -> None:
    older = new_job_id()
    enqueue(stand.broker, *[new_job_id() for _ in range(4)])
    claim(stand, 2)
    enqueue(stand.another(), older)
    assert claim(stand, 2)[0] == older


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr("stoker.brokers.orm.claim.time.monotonic", lambda: now[0])
    return now


def looking(clock: list[float], seconds: float, found: int) -> Any:
    """Return a claim that takes this long and gets this many jobs."""

    def claim() -> list[int]:
        clock[0] += seconds
        return [0] * found

    return claim


def look(marks: watermarks.Watermarks, claim: Any) -> None:
    marks.guide(claim, ["default"], lambda: False)


@pytest.mark.postgres
@pytest.mark.parametrize("took", [0.01, 60.0])
def test_full_scan_is_due_after_a_bounded_time(clock: list[float], took: float) -> None:
    """The interval is a multiple of the scan's time, up to a maximum."""
    marks = watermarks.Watermarks("default")
    look(marks, looking(clock, took, 100))
    clock[0] += min(took * watermarks.SHARE, watermarks.LONGEST_SECONDS) - 0.001
    assert marks.are_good()
    clock[0] += 0.002
    assert not marks.are_good()


@pytest.mark.postgres
@pytest.mark.parametrize(("took", "are_good"), [(0.001, True), (0.008, False)])
def test_marks_that_save_no_time_are_dropped(
    clock: list[float], took: float, are_good: bool
) -> None:
    """Without marks a late job waits for one claim only."""
    marks = watermarks.Watermarks("default")
    look(marks, looking(clock, 0.01, 100))
    look(marks, looking(clock, took, 100))
    assert marks.are_good() is are_good


def test_marks_are_used_only_if_the_engine_supports_them(stand: OrmStand) -> None:
    enqueue(stand.broker, new_job_id(), new_job_id())
    claim(stand)
    are_good = stand.broker._marks.are_good()  # type: ignore[attr-defined] # of this broker
    assert not are_good or engine_of("default").claims_by_marks


@pytest.mark.postgres
@pytest.mark.usefixtures("good")
def test_claim_by_marks_reads_fewer_pages_than_a_full_scan(stand: OrmStand) -> None:
    """While a snapshot is held open, vacuum cannot remove the entries of claimed jobs."""
    with snapshot():
        for _ in range(6):
            enqueue(stand.broker, *[new_job_id() for _ in range(500)])
            assert len(claim(stand, 500)) == 500
        enqueue(stand.broker, *[new_job_id() for _ in range(20)])
        by_marks = blocks_of_a_claim(stand)
        stand.broker._marks.forget()  # type: ignore[attr-defined] # of this broker
        from_start = blocks_of_a_claim(stand)
    assert by_marks < from_start / 3, f"{by_marks} blocks by the marks, {from_start} without them"


def blocks_of_a_claim(stand: OrmStand) -> int:
    """Return how many pages a claim of ten jobs reads to find them, and roll it back."""
    touched = 0

    def explain(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        nonlocal touched
        if "INTO stoker_claimed" in sql:
            with transaction.atomic():
                execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", params, many, context)
                plan = context["cursor"].fetchone()[0]
                (walk,) = nodes(plan, "Index Name", "stoker_ready_line")
                touched = walk["Shared Hit Blocks"] + walk["Shared Read Blocks"]
                transaction.set_rollback(True)
        return execute(sql, params, many, context)

    with transaction.atomic(), connection.cursor() as cursor:
        # If autovacuum has just analyzed an empty table, PostgreSQL would scan the whole table.
        cursor.execute("SET LOCAL enable_seqscan = off")
        with connection.execute_wrapper(explain):
            assert len(claim(stand, 10)) == 10
        transaction.set_rollback(True)
    return touched


@contextmanager
def snapshot() -> Iterator[None]:
    """Hold a snapshot open in another session."""
    other = connection.copy()
    with other.cursor() as cursor:
        cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        cursor.execute("SELECT count(*) FROM stoker_ready")
        yield
        cursor.execute("ROLLBACK")
    other.close()


@contextmanager
def locked(job_id: UUID) -> Iterator[None]:
    """Lock the row of a ready job in another session."""
    is_locked, may_go = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            list(Ready.objects.filter(pk=job_id).select_for_update())
            is_locked.set()
            may_go.wait(120)
        connections.close_all()

    thread = threading.Thread(target=hold)
    thread.start()
    assert is_locked.wait(120)
    yield
    may_go.set()
    thread.join()
