"""A store that an older version left in the middle of its work is migrated and drained.

`python -m tests.upgrade` makes store.json, and fill.py says what is in it.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core.management import call_command

from stoker import Result, dead_letters, lock, queues, schedules
from stoker.compat import task_backends
from stoker.conf import settings_for
from stoker.inspect.doctor.examination import examine
from stoker.jobs.relay import relay_from
from stoker.models import Claimed, DeadLetter, Job, Workflow

from tests.app.models import Ledger
from tests.cluster.clusters import running_cluster, wait_for
from tests.upgrade import tasks
from tests.upgrade.databases import load, new_database

pytestmark = pytest.mark.django_db(transaction=True)

STORE = Path(__file__).with_name("store.json")
INTERRUPTED = {
    "runs",
    "runs before its hook",
    "runs from a checkpoint",
    "runs with the lock",
    "runs in the limit",
    "runs in the limit, too",
    "runs in the sequence",
    "runs as chain 2",
    "runs as group 2",
    "runs as group 3",
    "runs as undo",
    "runs as chord 2",
}
WAITING = {
    "ready",
    "deferred for an hour",
    "unique",
    "in the outbox",
    "fails and is retried",
    "fails and is requeued after an hour",
    "fails and is requeued by hand",
    "snoozed for an hour",
    "hook",
    "blocked by the lock",
    "blocked by the limit",
    "blocked by the sequence",
    "blocked by the rate",
    "chain 3",
    "group 3 in turn",
    "chord end",
    "tick of an hour",
}
HELD_BACK = {"blocked by a halted sequence", "ready in a paused queue"}
"""These run when an operator lets them."""


@pytest.fixture(autouse=True)
def _migrated_store(tmp_path: Path) -> Iterator[None]:
    with new_database(tmp_path):
        load(STORE)
        call_command("migrate", verbosity=0)
        yield


def test_store_of_older_version_is_drained(tmp_path: Path) -> None:
    """Each job runs once, and nothing else runs."""
    assert tasks.work_unique.enqueue("another").args == ["unique"]
    assert relay_from(settings_for("default"), "default", lambda: None) == 1
    with running_cluster(tmp_path) as cluster:
        wait_for(lambda: finished() >= INTERRUPTED | WAITING, cluster.tail)
        assert not finished() & HELD_BACK
        queues.resume("mail")
        dead_letters.discard(DeadLetter.objects.get(task__endswith="work_until_halted").pk)
        wait_for(lambda: finished() >= HELD_BACK, cluster.tail)
    assert started() == Counter(INTERRUPTED | WAITING | HELD_BACK)
    check_results()
    with lock("nightly", wait=0):
        assert not Claimed.objects.exists()
    assert examine(settings_for("default")).is_healthy


def check_results() -> None:
    """Check what the rows of both versions say."""
    found = {}
    for pk in Job.objects.order_by("pk").values_list("pk", flat=True):
        result: Result[object] = task_backends["default"].get_result(str(pk))
        found[result.args[0] if result.args else result.kwargs["name"]] = result
    twice = {name for name in found if found[name].attempts == 2}
    assert twice == {*INTERRUPTED, "fails and is retried"}
    assert found["runs from a checkpoint"].return_value == {"rows": 500}
    assert found["succeeded"].return_value == "succeeded"
    assert found["fails and is left"].errors[0].exception_class is ConnectionError
    states = {name: found[name].state for name in ("cancelled", "runs and is cancelled")}
    assert states == {"cancelled": "CANCELLED", "runs and is cancelled": "CANCELLED"}
    assert found["deferred for a day"].state == "DEFERRED"
    workflows = Counter(Workflow.objects.values_list("state", flat=True))
    assert workflows == {"SUCCESSFUL": 4, "FAILED": 1}
    assert schedules.get("every second").is_over
    assert schedules.get("every hour").is_over
    states = Counter(DeadLetter.objects.values_list("state", flat=True))
    assert states == {"open": 2, "discarded": 2, "resolved": 2}


def started() -> Counter[str]:
    """Return the names of jobs -> how often this version has started them."""
    return Counter(Ledger.objects.values_list("note", flat=True))


def finished() -> set[str]:
    """Return the names of the jobs that this version has started, and that have ended."""
    ended = {str(pk) for pk in Job.objects.exclude(status=None).values_list("pk", flat=True)}
    rows = Ledger.objects.values_list("note", "job_id")
    return {name for name, job_id in rows if job_id in ended}
