"""Time-outs and attempts of jobs: those of the cluster that serves their queue."""

from typing import Any

import pytest
from django.test import override_settings

from stoker.contrib.django_q import conf, importing
from stoker.contrib.django_q.models import Schedule
from stoker.contrib.django_q.tasks import async_chain, async_iter, async_task
from stoker.jobs.package import sealer_for
from stoker.models import Job
from stoker.testing import drain

from tests.contrib.django_q.test_schedules import fire

pytestmark = pytest.mark.django_db(databases="__all__")
HERE = "tests.contrib.django_q.functions"
CLUSTERS = {
    "name": "shop",
    "orm": "default",
    "timeout": 2,
    "max_attempts": 4,
    "ALT_CLUSTERS": {
        "long": {"timeout": 600, "max_attempts": 7},
        "endless": {"timeout": None, "max_attempts": 0},
        "once": {"ack_failures": True},
    },
}
ENDLESS = (None, conf.DEFAULT_ATTEMPTS)
QUEUES = [
    ("shop", (2, 4)),
    ("unheard", (2, 4)),
    ("long", (600, 7)),
    ("endless", ENDLESS),
    ("once", (2, 1)),
]


@pytest.fixture(autouse=True)
def _derived(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The backend is made from Q_CLUSTER."""
    monkeypatch.setattr(conf, "_derived", {conf.alias()})
    with override_settings(Q_CLUSTER=CLUSTERS):
        yield


def limits() -> set[tuple[float | None, int]]:
    """Return time-out and attempts of all jobs that have not ended."""
    sealer = sealer_for(conf.settings())
    jobs = Job.objects.using(conf.database()).filter(status=None)
    options = [sealer.open(bytes(job.package)).options for job in jobs]
    return {(one.timeout_seconds, one.max_attempts) for one in options}


@pytest.mark.parametrize(("queue", "expected"), QUEUES)
def test_job_has_the_limits_of_the_cluster_of_its_queue(queue: str, expected: Any) -> None:
    async_task(f"{HERE}.add", 1, cluster=queue)
    async_task(f"{HERE}.add", 1, q_options={"cluster": queue})
    async_iter(f"{HERE}.add", [1, 2], cluster=queue)
    async_chain([(f"{HERE}.add", (1,), {"cluster": queue})])
    assert limits() == {expected}


def test_job_from_another_cluster_has_the_limits_of_its_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("Q_CLUSTER_NAME", "long")
    async_task(f"{HERE}.add", 1)
    assert limits() == {(600, 7)}
    async_task(f"{HERE}.add", 1, cluster="shop")
    assert limits() == {(600, 7), (2, 4)}


@pytest.mark.parametrize(("queue", "expected"), QUEUES)
def test_scheduled_job_has_the_limits_of_the_cluster_of_its_queue(
    queue: str, expected: Any
) -> None:
    Schedule.objects.create(func=f"{HERE}.add", args="1", cluster=queue)
    fire()
    assert limits() == {expected}


@pytest.mark.parametrize("queue", ["", "long"])
def test_schedule_without_a_cluster_runs_in_the_main_one(
    queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not matter in which cluster the schedule was saved."""
    monkeypatch.setenv("Q_CLUSTER_NAME", queue)
    Schedule.objects.create(func=f"{HERE}.add", args="1")
    fire()
    assert Job.objects.get().queue == "shop"
    assert limits() == {(2, 4)}


@pytest.mark.parametrize(("queue", "expected"), QUEUES)
@pytest.mark.parametrize("own", ["", "long"])
def test_imported_job_has_the_limits_of_the_cluster_of_its_queue(
    own: str, queue: str, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("Q_CLUSTER_NAME", own)
    importing._enqueue({"id": "a" * 32, "func": f"{HERE}.add", "args": (1,)}, queue)
    assert limits() == {expected}


def test_hook_has_the_limits_of_the_cluster_of_its_queue() -> None:
    async_task(f"{HERE}.add", 1, hook=f"{HERE}.hook", cluster="long", timeout=9)
    assert limits() == {(9, 7)}
    drain(until_empty=False)
    assert limits() == {(600, 7)}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"timeout": 9}, (9, 7)),
        ({"ack_failure": True}, (600, 1)),
        ({"cluster": "once", "ack_failure": False}, (2, 4)),
        ({"cluster": "once", "ack_failure": None}, (2, 1)),
    ],
    ids=str,
)
def test_options_of_a_call_come_before_those_of_the_cluster(options: Any, expected: Any) -> None:
    given = {"cluster": "long", **options}
    async_task(f"{HERE}.add", 1, **given)
    Schedule.objects.create(func=f"{HERE}.add", args="1", kwargs=f"q_options={given}")
    fire()
    assert limits() == {expected}


def test_limits_of_a_backend_in_tasks_are_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conf, "_derived", set())
    async_task(f"{HERE}.add", 1, cluster="long")
    settings = conf.settings()
    assert limits() == {(settings.timeout_seconds, settings.max_attempts)}
