"""Never lost, never doubled, although processes are killed at any moment."""

import random
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from stoker.models import Cluster

from tests.app.models import Ledger
from tests.app.tasks import write_ledger, write_ledger_async
from tests.cluster.clusters import (
    ProcessCluster,
    end_family,
    is_alive,
    wait_for,
    wait_while_it_goes_on,
)
from tests.story.ledgers import (
    assert_all_recorded_once,
    assert_doctor_finds_no_fault,
    assert_no_overlap,
    executions,
    unfinished,
)

VICTIMS = (
    ("worker",),
    ("pusher",),
    ("monitor",),
    ("scheduler",),
    ("sentinel",),
    ("pusher", "worker"),
    ("pusher", "monitor"),
    ("worker", "sentinel"),
    ("worker", "worker"),
)
"""The processes that are killed together."""
TRIES = {"max_attempts": 100, "max_crashes": 100}
MORE = 200
"""Jobs that are enqueued if all are done before all kills have happened."""

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.django_db(transaction=True),
]


@pytest.mark.sqlite
@pytest.mark.postgres
@pytest.mark.mariadb
@pytest.mark.on_redis
@pytest.mark.parametrize(
    ("jobs", "concurrency", "rounds"),
    [
        pytest.param(200, 1, 1, marks=pytest.mark.quick),
        (2000, 1, 2),
        pytest.param(1000, 8, 1, marks=pytest.mark.on_mongodb),
    ],
)
def test_every_job_is_recorded_once_despite_kills(
    jobs: int, concurrency: int, rounds: int, seed: int, tmp_path: Path
) -> None:
    """Many jobs, while every kind of process is killed at random moments, alone and in pairs."""
    chance = random.Random(seed)
    story = _Story(chance, tmp_path, concurrency)
    try:
        story.enqueue(jobs)
        story.kill_in_turn(rounds)
        wait_while_it_goes_on(unfinished, lambda: f"{unfinished()} left\n{story.tail()}")
        wait_for(lambda: Cluster.objects.count() <= 1, story.tail)
        assert story.cluster.stop() == 0
    finally:
        end_family(story.cluster)
    print(f"kills: {story.kills}; executions, cut off: {executions()}")
    assert_all_recorded_once(story.job_ids)
    assert_no_overlap()
    wait_for(lambda: not any(map(is_alive, story.orphans)), lambda: "orphaned processes go on")
    assert not Cluster.objects.exists()
    assert_doctor_finds_no_fault()
    assert Ledger.objects.count() >= jobs
    assert not (complaints := story.complaints()), "\n".join(complaints)


class _Story:
    """One cluster after another, and the kills so far."""

    def __init__(self, chance: random.Random, folder: Path, concurrency: int) -> None:
        self.chance = chance
        self.folder = folder
        self.concurrency = concurrency
        self.kills = dict.fromkeys(VICTIMS, 0)
        self.orphans: list[psutil.Process] = []
        self.clusters: list[ProcessCluster] = []
        self.job_ids: list[str] = []
        self._start()

    @property
    def cluster(self) -> ProcessCluster:
        return self.clusters[-1]

    def enqueue(self, jobs: int) -> None:
        """Enqueue jobs of 0 to 50 ms, most of them short, a fifth of them async."""
        calls = [((), {"seconds": self.chance.random() ** 4 * 0.05}) for _ in range(jobs)]
        fifth = jobs // 5
        results = write_ledger_async.using(**TRIES).enqueue_many(calls[:fifth])
        results += write_ledger.using(**TRIES).enqueue_many(calls[fifth:])
        self.job_ids += [result.id for result in results]

    def kill_in_turn(self, rounds: int) -> None:
        """Kill each combination in turn, and again those that missed a process."""
        for _ in range(rounds):
            self._kill_all(VICTIMS)
        while missed := [victims for victims, count in self.kills.items() if not count]:
            self._kill_all(missed)

    def tail(self) -> str:
        return self.cluster.tail()

    def complaints(self) -> list[str]:
        return [line for cluster in self.clusters for line in cluster.complaints()]

    def _kill_all(self, all_victims: Sequence[tuple[str, ...]]) -> None:
        for victims in self.chance.sample(all_victims, len(all_victims)):
            time.sleep(self.chance.uniform(0.05, 0.7))
            if not unfinished():
                self.enqueue(MORE)
            self._kill(victims)
            if "sentinel" in victims:
                assert_doctor_finds_no_fault()

    def _kill(self, victims: tuple[str, ...]) -> None:
        crew = [one for members in self.cluster.crew().values() for one in members]
        which = self.chance.randrange(2)
        killed = [self.cluster.kill(role, which + place) for place, role in enumerate(victims)]
        self.kills[victims] += all(killed)
        if "sentinel" in victims:
            self.cluster.process.wait()
            self.orphans += crew
            self._start()

    def _start(self) -> None:
        self.clusters.append(ProcessCluster(self.folder, CONCURRENCY=self.concurrency))
        self.cluster.wait_for_crew()
