"""Workflows while processes are killed: no step is lost, doubled or too early.

STOKER_TEST_FULL=1 runs them at full size: a chord of 10,000 members and 100 chains of 20 steps.
"""

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker import chain, chord, get_workflow
from stoker.models import Job, Workflow

from tests.app.flows import complain, gather, link, member
from tests.app.models import Ledger
from tests.cluster.clusters import ProcessCluster, running_cluster, wait_while_it_goes_on
from tests.story.ledgers import assert_doctor_finds_no_fault, unfinished

IS_FULL = bool(os.environ.get("STOKER_TEST_FULL"))
MEMBERS = 10_000 if IS_FULL else 300
CHAINS, STEPS = (100, 20) if IS_FULL else (8, 6)

pytestmark = [
    pytest.mark.sqlite,
    pytest.mark.postgres,
    pytest.mark.mariadb,
    pytest.mark.on_redis,
    pytest.mark.chaos,
    pytest.mark.django_db(transaction=True),
]


def test_chord_callback_runs_once_with_all_results_despite_kills(seed: int, tmp_path: Path) -> None:
    """Workers, monitor and pusher are killed meanwhile."""
    chance = random.Random(seed)
    members = (member.s(number, chance.random() ** 4 * 0.02) for number in range(MEMBERS))
    with running_cluster(tmp_path) as cluster:
        cluster.wait_for_crew()
        began = time.monotonic()
        workflow = chord(members, gather.s()).enqueue()
        _kill_while(cluster, chance, _left, pause=0.3)
        print(f"{MEMBERS} members in {time.monotonic() - began:.1f} s")
    workflow.refresh()
    assert workflow.status == "SUCCESSFUL", list(workflow.failed_steps())
    assert workflow.value == sum(range(MEMBERS))
    notes = list(Ledger.objects.values_list("note", flat=True))
    assert notes == [f"gathered {MEMBERS} {MEMBERS}"]
    assert Job.objects.count() == MEMBERS + 1


def test_each_step_runs_as_its_policy_says_despite_kills(seed: int, tmp_path: Path) -> None:
    """Steps fail for good, fail once or are optional, while processes are killed."""
    chance = random.Random(seed)
    plans = [[_fate(chance) for _ in range(STEPS)] for _ in range(CHAINS)]
    with running_cluster(tmp_path, LEASE_SECONDS=2) as cluster:
        cluster.wait_for_crew()
        ids = [_enqueue(number, plan) for number, plan in enumerate(plans)]
        _kill_while(cluster, chance, _left, pause=0.2)
    expected = sorted(note for number, plan in enumerate(plans) for note in _traces(number, plan))
    assert sorted(Ledger.objects.values_list("note", flat=True)) == expected
    for workflow_id, plan in zip(ids, plans, strict=True):
        status = "FAILED" if "wrong" in plan else "SUCCESSFUL"
        assert get_workflow(workflow_id).status == status


def _enqueue(number: int, plan: list[str]) -> str:
    steps = []
    for place, how in enumerate(plan):
        step = link.s(number, place, how) if place else link.si(None, number, place, how)
        steps.append(step.optional() if how == "optional" else step)
    return str(chain(*steps, on_error=complain.s(number)).enqueue().id)


def _fate(chance: random.Random) -> str:
    return chance.choices(["fine", "shaky", "optional", "wrong"], [70, 15, 10, 5])[0]


def _traces(number: int, plan: list[str]) -> list[str]:
    """Return the expected lines of the ledger; a failed atomic step leaves none."""
    traces: list[str] = []
    before: int | None = None
    for place, how in enumerate(plan):
        if how == "wrong":
            return [*traces, f"{number}: FAILED"]
        if how == "optional":
            before = None
            continue
        traces.append(f"{number}:{place} after {before}")
        before = place
    return traces


def _left() -> object:
    """Return what is left to do; () means nothing."""
    running = Workflow.objects.filter(state="RUNNING").count()
    done = Job.objects.exclude(status=None).count()
    return (running, done) if running or unfinished() else ()


def _kill_while(
    cluster: ProcessCluster, chance: random.Random, left: Callable[[], object], pause: float
) -> None:
    kills = 0
    for _ in range(200 if IS_FULL else 8):
        time.sleep(chance.uniform(0.05, pause))
        if kills and not left():
            break
        role = chance.choice(["worker", "worker", "monitor", "pusher"])
        kills += cluster.kill(role, chance.randrange(2)) is not None
    wait_while_it_goes_on(left, lambda: f"{left()} left\n{cluster.tail()}")
    print(f"{kills} kills")
    assert kills
    assert_doctor_finds_no_fault()
    told = [
        line for line in cluster.complaints() if "Traceback" not in line
    ]  # the steps fail on purpose
    assert not told
