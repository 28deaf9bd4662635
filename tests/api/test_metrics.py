"""The history of metrics over HTTP."""

from datetime import timedelta

import pytest
from django.utils import timezone

from stoker.models import Sample, Tally

from tests.api.conftest import Caller

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _history(transactional_db: None) -> None:
    now = int(timezone.now().timestamp())
    rows = [("mail", "shop.tasks.send", 5, 1), ("default", "shop.tasks.charge", 3, 0)]
    for queue, task, successful, failed in rows:
        Tally.objects.create(
            start=now - 60, seconds=10, queue=queue, task=task,
            successful=successful, failed=failed, run_seconds=2.0 * successful,
        )  # fmt: skip
    Tally.objects.create(start=now - 7200, seconds=10, queue="mail", task="old", successful=100)
    Sample.objects.create(
        start=now // 60 * 60, seconds=60, queue="mail", ready=7, deferred=1, blocked=0, running=2,
        oldest_ready_seconds=4.5,
    )  # fmt: skip


def test_history_of_the_last_hour_has_outcomes_and_backlog(anna: Caller) -> None:
    points = anna.get("metrics")["points"]
    assert len(points) in (60, 61, 62)
    assert sum(one["figures"]["successful"] for one in points) == 8
    assert [one["backlog"]["ready"] for one in points if one["backlog"]] == [7]
    assert {one["seconds"] for one in points} == {60}


@pytest.mark.parametrize(
    ("query", "successful"),
    [
        ({"queue": "mail"}, 5),
        ({"task": "shop.tasks.charge"}, 3),
        ({"queue": "mail", "task": "shop.tasks.charge"}, 0),
        ({"since": "-3h"}, 108),
    ],
)
def test_history_is_filtered(query: dict[str, str], successful: int, anna: Caller) -> None:
    if "since" in query:
        query = {"since": (timezone.now() - timedelta(hours=3)).isoformat()}
    points = anna.get("metrics", step_seconds=3600, **query)["points"]
    assert sum(one["figures"]["successful"] for one in points) == successful


def test_tasks_and_queues_have_their_figures(anna: Caller) -> None:
    tasks = {one["task"]: one["figures"] for one in anna.get("metrics/tasks")["tasks"]}
    assert {name: one["failed"] for name, one in tasks.items()} == {
        "shop.tasks.send": 1,
        "shop.tasks.charge": 0,
    }
    queues = {one["queue"]: one for one in anna.get("metrics/queues")["queues"]}
    assert queues["mail"]["figures"]["successful"] == 5
    assert queues["mail"]["backlog"]["oldest_ready_seconds"] == 4.5


@pytest.mark.parametrize(
    "query",
    [
        "since=2020-01-01T00:00:00Z&until=2020-01-02T00:00:00Z&step_seconds=0",
        "since=2001-01-01T00:00:00Z",
        "since=2025-01-02T00:00:00Z&until=2025-01-01T00:00:00Z",
        "since=2025-01-01T00:00:00Z&until=2026-01-01T00:00:00Z&step_seconds=60",
    ],
)
def test_impossible_periods_are_refused(query: str, anna: Caller) -> None:
    assert anna.call("GET", f"metrics?{query}").status_code == 422
