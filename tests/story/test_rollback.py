"""Never early: a job exists if and only if the transaction that enqueued it commits."""

import random
import threading
import time
from pathlib import Path

import pytest
from django.db import connection, transaction

from stoker.models import Job

from tests.app.models import Account, Ledger
from tests.app.tasks import write_ledger
from tests.cluster.clusters import running_cluster, wait_while_it_goes_on
from tests.story.ledgers import assert_all_recorded_once, unfinished

pytestmark = [
    pytest.mark.sqlite,
    pytest.mark.postgres,
    pytest.mark.mariadb,
    pytest.mark.on_redis,
    pytest.mark.django_db(transaction=True),
]


class RolledBack(Exception):
    """Raised on purpose inside a transaction."""


@pytest.mark.parametrize("transactions", [pytest.param(200, marks=pytest.mark.quick), 1000])
def test_only_committed_jobs_run_and_none_before_its_commit(
    transactions: int, seed: int, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    half = transactions // 2
    chosen = [True] * half + [False] * half
    chance.shuffle(chosen)
    committing_at: dict[str, int] = {}

    def enqueue_all() -> None:
        for is_committed in chosen:
            try:
                with transaction.atomic():
                    Account.objects.create(total=1)
                    job_id = write_ledger.enqueue().id
                    if chance.random() < 0.02:
                        time.sleep(0.02)  # enough time to start, if it were visible
                    if not is_committed:
                        raise RolledBack  # noqa: TRY301 - rolls back
                    committing_at[job_id] = time.monotonic_ns()
            except RolledBack:
                continue
        connection.close()

    with running_cluster(tmp_path) as cluster:
        cluster.wait_for_crew()
        thread = threading.Thread(target=enqueue_all)
        thread.start()
        thread.join()
        wait_while_it_goes_on(unfinished, lambda: f"{unfinished()} left\n{cluster.tail()}")

    assert len(committing_at) == half
    assert Job.objects.count() == half
    assert Account.objects.count() == half
    assert_all_recorded_once(list(committing_at))
    early = [
        line.job_id for line in Ledger.objects.all() if line.started_ns < committing_at[line.job_id]
    ]
    assert not early, "these ran before their commit"
