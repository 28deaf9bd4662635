"""Never early and never lost if the queue is outside the transaction's database: the enqueuing
process dies right after the commit, or right after the queue has the job."""

import os
import random
import signal
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from django.db import connections, transaction

from stoker.brokers.adapters import broker_for
from stoker.brokers.dispatch import Dispatch
from stoker.conf import settings_for
from stoker.jobs.relay import Relay
from stoker.models import Job, Outgoing, Ready, Relayed

from tests.app.models import Ledger
from tests.app.tasks import write_ledger
from tests.cluster.clusters import running_cluster, wait_for

DEATHS = int(os.environ.get("STOKER_TEST_OUTBOX_DEATHS", "30"))


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_after_the_commit() -> None:
    with transaction.atomic():
        transaction.on_commit(die)
        write_ledger.enqueue()


def die_when_the_queue_has_it() -> None:
    hand_over = Relay._hand_over

    def hand_over_and_die(relay: Relay, rows: list[Outgoing], until: float) -> None:
        hand_over(relay, rows, until)
        die()

    Relay._hand_over = hand_over_and_die  # type: ignore[assignment,method-assign] # in a child
    with transaction.atomic():
        write_ledger.enqueue()
    die()  # a scheduler relayed it first


def die_before_the_commit() -> None:
    with transaction.atomic():
        write_ledger.enqueue()
        die()


def in_a_child(what: Callable[[], None]) -> int:
    """Run it in a forked child and return the signal that ended the child."""
    connections.close_all()
    child = os.fork()
    if not child:
        try:
            what()
        except BaseException:  # noqa: BLE001 - the child must not continue the test run
            traceback.print_exc()
        os._exit(1)
    return os.WTERMSIG(os.waitpid(child, 0)[1])


@pytest.mark.two_databases
@pytest.mark.django_db(transaction=True, databases=["default", "queue"])
def test_every_committed_job_runs_once_with_two_databases(seed: int, tmp_path: Path) -> None:
    committed = _die_often(seed, tmp_path, lambda: Ready.objects.using("queue").exists())
    assert Relayed.objects.using("queue").count() == committed
    assert not Job.objects.using("queue").exists()


@pytest.mark.on_redis
@pytest.mark.django_db(transaction=True)
def test_every_committed_job_runs_once_with_the_queue_on_redis(seed: int, tmp_path: Path) -> None:
    broker = broker_for(settings_for())
    assert isinstance(broker, Dispatch)
    _die_often(seed, tmp_path, broker.broker.sizes)
    assert not Job.objects.exists()


def _die_often(seed: int, tmp_path: Path, is_there_more: Callable[[], object]) -> int:
    """Let processes die at random moments. Return how many jobs were committed."""
    chance = random.Random(seed)
    committed = 0
    with running_cluster(tmp_path, KEEP_RESULTS=False) as cluster:
        cluster.wait_for_crew()
        for _ in range(DEATHS):
            way = chance.choice(
                [die_after_the_commit, die_when_the_queue_has_it, die_before_the_commit]
            )
            assert in_a_child(way) == signal.SIGKILL
            committed += way is not die_before_the_commit
        wait_for(
            lambda: (
                not Outgoing.objects.exists()
                and not is_there_more()
                and Ledger.objects.count() >= committed
            ),
            cluster.tail,
        )
        assert cluster.stop() == 0, cluster.text()
    assert Ledger.objects.count() == committed
    assert Ledger.objects.values("job_id").distinct().count() == committed
    return committed
