"""User code changes Stoker's rows in a transaction that stays open, like a slow view under
ATOMIC_REQUESTS. Only the jobs concerned wait for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from stoker import InSequence, Lock, Unique, dead_letters, group
from stoker.brokers.contract import ClaimRequest
from stoker.brokers.orm import broker as broker_module
from stoker.brokers.orm.broker import OrmBroker
from stoker.conf import settings_for
from stoker.guards import admission
from stoker.models import DeadLetter, Deferred, GuardKey, Job, Ready
from stoker.store.written import MICROSECONDS, database_now_us

from tests.app.chaos import run_until
from tests.app.models import Ledger
from tests.app.tasks import fail_once, nothing
from tests.cluster.clusters import ProcessCluster, running_cluster, wait_for
from tests.guards.sessions import Session, session

PLAIN_JOBS = 400
STALL_SECONDS = 240.0
SEQUENCE = InSequence("account 1", after_failure="halt")

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.postgres,
    pytest.mark.mariadb,
    pytest.mark.django_db(transaction=True),
]


@pytest.fixture
def user() -> Iterator[Session]:
    with session() as opened:
        yield opened


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ProcessCluster]:
    with running_cluster(tmp_path, LEASE_SECONDS=15, DATABASE_SECONDS=4) as made:
        made.wait_for_crew()
        yield made


def ended(job_ids: list[str]) -> int:
    return Job.objects.filter(pk__in=job_ids).exclude(status=None).count()


def assert_plain_jobs_are_recorded(cluster: ProcessCluster) -> None:
    job_ids = [result.id for result in nothing.enqueue_many([((), {})] * PLAIN_JOBS)]
    wait_for(
        lambda: ended(job_ids) == PLAIN_JOBS,
        lambda: f"{ended(job_ids)} of {PLAIN_JOBS}\n{cluster.tail()}",
        STALL_SECONDS,
    )


def test_cancelled_workflow_in_open_transaction_delays_no_other_job(
    cluster: ProcessCluster, user: Session, tmp_path: Path
) -> None:
    """Steps of the workflow end meanwhile."""
    over = tmp_path / "over"
    workflow = group(*[run_until.si(str(over)) for _ in range(2)], nothing.si()).enqueue()
    wait_for(lambda: Ledger.objects.count() == 2, cluster.tail)
    user.begin()
    assert user.do(workflow.cancel)
    over.touch()
    for _ in range(3):
        assert_plain_jobs_are_recorded(cluster)
    user.commit()
    wait_for(lambda: not Job.objects.filter(status=None).exists(), cluster.tail, STALL_SECONDS)
    workflow.refresh()
    assert workflow.status == "CANCELLED"


def test_requeue_of_halted_sequence_in_open_transaction_delays_no_other_job(
    cluster: ProcessCluster, user: Session
) -> None:
    """Hundreds of jobs of the sequence are ahead of the other jobs in the queue."""
    failed = fail_once.using(sequence=SEQUENCE).enqueue()
    wait_for(lambda: DeadLetter.objects.filter(job_id=failed.id).exists(), cluster.tail)
    letter = DeadLetter.objects.get()
    user.begin()
    assert user.do(lambda: dead_letters.requeue(letter.id).fate)
    calls: list[tuple[tuple[()], dict[str, object]]] = [((), {})] * 600
    waiting = [one.id for one in nothing.using(sequence=SEQUENCE, priority=5).enqueue_many(calls)]
    for _ in range(3):
        assert_plain_jobs_are_recorded(cluster)
    assert ended(waiting) == 0
    user.roll_back()
    assert dead_letters.discard(letter.id, by="alice", because="done by hand")
    wait_for(lambda: ended(waiting) > 5, cluster.tail, STALL_SECONDS)


def test_jobs_of_a_locked_key_are_deferred_longer_the_more_there_are(
    user: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the first would be ready again before the last are deferred."""
    # So long that a slow test leaves the first ones deferred, or takes as long itself.
    monkeypatch.setattr(admission, "LOOK_AGAIN_US", 3 * MICROSECONDS)
    locked = nothing.using(lock=Lock("one"))
    broker = OrmBroker(settings_for())
    locked.enqueue()
    assert len(broker.claim(ClaimRequest(1, holder=uuid4(), lease_seconds=60))) == 1
    locked.enqueue_many([((), {})] * 600)
    user.begin()
    user.do(lambda: GuardKey.objects.select_for_update().get())
    broker._search.be_careful()
    began_us = database_now_us("default")
    while Ready.objects.exists():
        broker.claim(ClaimRequest(100, holder=uuid4(), lease_seconds=60))
    took_us = database_now_us("default") - began_us
    moments = list(Deferred.objects.order_by("due_us").values_list("due_us", flat=True))
    user.roll_back()
    assert len(moments) == 600
    longest_us = took_us + admission.LOOK_AGAIN_LATEST_US
    assert 5 * MICROSECONDS < moments[-1] - moments[0] < longest_us


def test_slow_claims_soon_come_to_jobs_behind_those_of_a_locked_key(
    user: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a slow database there is time for one round per claim."""
    monkeypatch.setattr(broker_module, "LOOK_BEHIND_SECONDS", 0)
    locked = nothing.using(lock=Lock("one"), priority=5)
    broker = OrmBroker(settings_for())
    request = ClaimRequest(2, holder=uuid4(), lease_seconds=60)
    locked.enqueue()
    assert len(broker.claim(request)) == 1
    locked.enqueue_many([((), {})] * 600)
    plain = nothing.enqueue()
    user.begin()
    user.do(lambda: GuardKey.objects.select_for_update().get())
    broker._search.be_careful()
    claims = [broker.claim(request) for _ in range(12)]
    user.roll_back()
    assert [str(one.job_id) for found in claims for one in found] == [plain.id]


def test_jobs_of_a_locked_key_are_deferred_longer_if_the_search_for_others_is_slow(
    user: Session,
) -> None:
    locked = nothing.using(lock=Lock("one"))
    broker = OrmBroker(settings_for())
    request = ClaimRequest(2, holder=uuid4(), lease_seconds=60)
    locked.enqueue()
    assert len(broker.claim(request)) == 1
    locked.enqueue_many([((), {})] * 2)
    user.begin()
    user.do(lambda: GuardKey.objects.select_for_update().get())
    broker._search.be_careful()
    broker._search.look(2)
    broker._search.began -= 30
    assert broker.claim(request) == []
    ((due_us,),) = Deferred.objects.values_list("due_us").distinct()
    user.roll_back()
    assert due_us - database_now_us("default") > 29 * MICROSECONDS


@pytest.mark.parametrize("on_conflict", ["keep", "replace", "after"])
def test_unique_enqueue_in_open_transaction_delays_no_other_job(
    cluster: ProcessCluster, user: Session, tmp_path: Path, on_conflict: str
) -> None:
    """The job that holds the key ends meanwhile."""
    over = tmp_path / "over"
    unique = run_until.using(unique=Unique("report", on_conflict=on_conflict))  # type: ignore[arg-type] # one of its words
    unique.enqueue(str(over))
    wait_for(Ledger.objects.exists, cluster.tail)
    user.begin()
    user.do(lambda: unique.enqueue(str(over)))
    over.touch()
    for _ in range(3):
        assert_plain_jobs_are_recorded(cluster)
    user.commit()
    wait_for(lambda: not Job.objects.filter(status=None).exists(), cluster.tail, STALL_SECONDS)
