"""Dead letters are requeued again and again while clusters are killed: each logical job has one
entry, each failure counts once, and no job is doubled or lost.

``STOKER_TEST_STORM=1000`` and ``STOKER_TEST_EXHAUSTED=5000`` run it with realistic numbers.
"""

import os
import random
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from django.db import connection

from stoker import dead_letters
from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import ClaimRequest
from stoker.conf import settings_for
from stoker.dead_letters.requeueing import LetterFate
from stoker.jobs.package import sealer_for
from stoker.models import Attempt, Claimed, DeadLetter, Job, Requeue

from tests.app import tasks
from tests.app.frail import in_storm
from tests.app.models import Account
from tests.cluster.clusters import ProcessCluster, end_family, wait_for
from tests.story.ledgers import assert_doctor_finds_no_fault, unfinished

STORM = int(os.environ.get("STOKER_TEST_STORM", "60"))
EXHAUSTED = int(os.environ.get("STOKER_TEST_EXHAUSTED", "1500"))
REQUEUES = 20
LOOKS = 20
VICTIMS = ("worker", "monitor", "pusher", "scheduler", "sentinel")

pytestmark = [pytest.mark.chaos, pytest.mark.django_db(transaction=True)]


@pytest.mark.sqlite
@pytest.mark.postgres
def test_concurrent_requeues_make_no_extra_jobs(seed: int, tmp_path: Path) -> None:
    """Two operators requeue keyed jobs at once, while a third enqueues newer ones and a fourth
    undoes requeues."""
    chance = random.Random(seed)
    account = Account.objects.create(total=0)
    in_storm.enqueue_many([((number,), {}) for number in range(STORM)])
    storm = _Storm(chance, tmp_path)
    try:
        storm.wait()
        assert _open() == STORM
        Account.objects.filter(pk=account.pk).update(total=1)
        for _ in range(REQUEUES):
            storm.blow()
        storm.wait()
        assert storm.cluster.stop() == 0
    finally:
        end_family(storm.cluster)
    print(
        f"kills: {dict(storm.kills)}; made: {storm.made}; taken back: {storm.taken_back}; "
        f"jobs: {Job.objects.count()}"
    )
    assert Job.objects.filter(status="CANCELLED").count() == storm.taken_back
    assert DeadLetter.objects.count() == STORM, "an entry for each logical job"
    assert _open() >= STORM // 2
    _assert_each_failure_is_counted_once()
    assert Job.objects.count() == STORM + storm.made, "each job was returned by one call"
    assert not storm.complaints()
    assert_doctor_finds_no_fault()


class _Storm:
    """One cluster after another, and the operators who requeue dead letters."""

    def __init__(self, chance: random.Random, folder: Path) -> None:
        self.chance = chance
        self.folder = folder
        self.kills: Counter[str] = Counter()
        self.made = 0
        """The number of jobs that the callers were told they made."""
        self.taken_back = 0
        self.clusters: list[ProcessCluster] = []
        self._start()

    @property
    def cluster(self) -> ProcessCluster:
        return self.clusters[-1]

    def blow(self) -> None:
        """Requeue all open dead letters while a process is killed."""
        letters = list(DeadLetter.objects.filter(state="open").values_list("pk", flat=True))
        newer = self.chance.sample(range(0, STORM, 2), STORM // 10)
        ways = [self.chance.sample(letters, len(letters)) for _ in range(2)]
        undone = ways[0][: len(letters) // 2]
        made: list[int] = []
        taken_back: list[int] = []

        def send(ids: list[object]) -> Callable[[], None]:
            def sent() -> None:
                answers = [dead_letters.requeue(str(one)) for one in ids]
                made.append(sum(one.fate is LetterFate.REQUEUED for one in answers))

            return sent

        def enqueue() -> None:
            results = in_storm.enqueue_many([((number,), {}) for number in newer])
            made.append(sum(not one.was_duplicate for one in results))

        def undo() -> None:
            taken_back.append(sum(_undo_once_sent(str(one)) for one in undone))

        senders = _started(send(list(ways[0])), send(list(ways[1])), enqueue)
        threads = [*senders, *_started(undo)]
        victim = self.chance.choice(VICTIMS)
        self.kills[victim] += self.cluster.kill(victim, self.chance.randrange(2)) is not None
        if victim == "sentinel":
            self.cluster.process.wait()
            self._start()
        for thread in threads:
            thread.join()
        assert len(made + taken_back) == len(threads), "a call raised an error"
        self.made += sum(made)
        self.taken_back += sum(taken_back)

    def wait(self) -> None:
        wait_for(lambda: not unfinished(), lambda: f"{unfinished()}\n{self.cluster.tail()}", 600)

    def complaints(self) -> list[str]:
        return [
            line
            for cluster in self.clusters
            for line in cluster.complaints()
            if "Traceback" not in line  # the tasks fail on purpose
        ]

    def _start(self) -> None:
        self.clusters.append(ProcessCluster(self.folder))
        self.cluster.wait_for_crew()


def _undo_once_sent(letter_id: str) -> bool:
    """Undo a requeue that another thread is about to make. Return whether it was undone."""
    for _ in range(LOOKS):
        fate = dead_letters.undo_requeue(letter_id).fate
        if fate is not LetterFate.NOT_REQUEUED:
            return fate is LetterFate.TAKEN_BACK
    return False


def _open() -> int:
    return DeadLetter.objects.filter(state="open").count()


def _started(*calls: Callable[[], None]) -> list[threading.Thread]:
    def run(call: Callable[[], None]) -> None:
        try:
            call()
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    return threads


def _assert_each_failure_is_counted_once() -> None:
    """Assert that the entries count as many failures as there are failed jobs."""
    of_requeues = dict(Requeue.objects.values_list("job_id", "identity"))
    failed: Counter[str] = Counter()
    by_number: dict[int, str] = {}
    sealer = sealer_for(settings_for())
    for identity, package in DeadLetter.objects.values_list("identity", "package"):
        by_number[sealer.open(bytes(package)).args[0]] = identity
    for job in Job.objects.filter(status="FAILED"):
        identity = by_number[sealer.open(bytes(job.package)).args[0]]
        assert of_requeues.get(job.pk, identity) == identity
        failed[identity] += 1
    counted = dict(DeadLetter.objects.filter(state="open").values_list("identity", "failure_count"))
    wrong = {
        identity: (count, failed[identity])
        for identity, count in counted.items()
        if count != failed[identity]
    }
    assert not wrong, f"identity: (counted, failed) {wrong}"


def test_clean_up_of_many_exhausted_jobs_loses_and_doubles_none(tmp_path: Path) -> None:
    """One cluster died with these jobs, the next dies during the clean-up, a third finishes it."""
    results = tasks.nothing.using(max_attempts=1).enqueue_many([((), {})] * EXHAUSTED)
    broker, holder = broker_for(settings_for()), uuid4()
    while broker.claim(ClaimRequest(1000, holder=holder, lease_seconds=3600)):
        pass
    Claimed.objects.update(leased_until_us=1, is_kept=False)  # workers had got them
    first = ProcessCluster(tmp_path)
    try:
        wait_for(DeadLetter.objects.exists, first.tail)
        first.kill("sentinel")
        first.process.wait()
    finally:
        end_family(first)
    print(f"{DeadLetter.objects.count()} of {EXHAUSTED} when it was killed")
    assert DeadLetter.objects.exists()
    second = ProcessCluster(tmp_path)
    try:
        wait_for(lambda: not unfinished(), second.tail, 300)
        assert second.stop() == 0
    finally:
        end_family(second)
    job_ids = {result.id for result in results}
    letters = DeadLetter.objects.values_list("job_id", "reason", "failure_count")
    assert len(letters) == EXHAUSTED
    assert {str(job_id) for job_id, _, _ in letters} == job_ids
    assert {(reason, count) for _, reason, count in letters} == {("crash", 1)}
    assert Attempt.objects.count() == Job.objects.filter(status="FAILED").count() == EXHAUSTED
