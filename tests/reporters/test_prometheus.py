"""Metrics for Prometheus, parsed by Prometheus' own parsers."""

import json
import re
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from django.db import connection
from django.test import Client, override_settings
from django.urls import include, path
from django.utils import timezone
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families

from stoker import queues
from stoker.conf import settings_for
from stoker.exceptions import BrokerUnavailable
from stoker.inspect.queue_depths import QueueDepth
from stoker.models import Cluster, DeadLetter, Tally
from stoker.models.metrics import Sums, TaskInQueue
from stoker.reporters import prometheus
from stoker.reporters import prometheus as prometheus_numbers
from stoker.store.written import DatabaseNow, microseconds

from tests.app import tasks
from tests.reporters.conftest import TOKEN

pytestmark = [pytest.mark.django_db, pytest.mark.sqlite, pytest.mark.urls(__name__)]

urlpatterns = [path("metrics", include("stoker.reporters.urls"))]

DASHBOARD = Path(__file__).parents[2] / "examples" / "deploy" / "grafana" / "stoker.json"


@pytest.fixture(autouse=True)
def configured() -> Iterator[None]:
    entry = {
        "BACKEND": "stoker.backend.StokerBackend",
        "QUEUES": [],
        "OPTIONS": {"REPORTERS": {"prometheus": {"token": TOKEN}}},
    }
    with (
        override_settings(TASKS={"default": entry}),
        mock.patch.object(prometheus, "FRESH_SECONDS", -1.0),
    ):
        yield


def scrape(**headers: str) -> Any:
    return Client().get("/metrics", headers={"Authorization": f"Bearer {TOKEN}", **headers})


def numbers(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    """Return name -> label values in the order of their names, without the backend -> value."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert sample.labels.pop("backend") == "default"
            found.setdefault(sample.name, {})[
                tuple(value for _, value in sorted(sample.labels.items()))
            ] = sample.value
    return found


def write(successful: int = 0, age_seconds: float = 20, **sums: Any) -> None:
    counted = Sums(successful=successful, run_classes=Counter({40: successful}), **sums)
    start = int(time.time() - age_seconds)
    rows = Tally.objects.rows_of(start, 10, {TaskInQueue("mail", "shop.tasks.send"): counted})
    Tally.objects.bulk_create(rows)


def test_metrics_have_the_stores_numbers() -> None:
    write(3, failed=1, retried=2, run_seconds=1.5, wait_seconds=9.0)
    tasks.nothing.enqueue()
    tasks.nothing.using(run_after=60).enqueue()
    queues.pause("default", by="alice")
    DeadLetter.objects.create(
        id=uuid.uuid4(), identity="x", job_id=uuid.uuid4(), task="x", package=b"", reason="crash"
    )
    response = scrape()
    assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    found = numbers(response.text)
    place = ("mail", "shop.tasks.send")
    assert found["stoker_jobs_total"] == {
        ("successful", *place): 3,
        ("failed", *place): 1,
        ("cancelled", *place): 0,
    }
    assert found["stoker_retries_total"] == {place: 2}
    assert found["stoker_run_seconds_total"] == {place: 1.5}
    assert found["stoker_wait_seconds_total"] == {place: 9}
    assert found["stoker_task_run_seconds"]["0.95", "shop.tasks.send"] > 0
    waiting = found["stoker_queue_jobs"]
    assert (waiting["default", "ready"], waiting["default", "deferred"]) == (1, 1)
    assert found["stoker_queue_oldest_ready_seconds"]["default",] >= 0
    assert found["stoker_queue_paused"] == {("default",): 1}
    assert found["stoker_dead_letters"] == {("crash",): 1}
    states = ("running", "quiet", "stopping", "silent")
    assert found["stoker_clusters"] == {(state,): 0 for state in states}
    assert found["stoker_up"] == {(): 1}


def sign_on(host: str, silent_seconds: float) -> None:
    running = [{"job": str(tasks.nothing.enqueue().id), "seconds": 1.0}]
    workers = [{"number": 0, "pid": 8, "jobs_done": 0, "running": running}]
    Cluster.objects.create(
        id=uuid.uuid4(),
        name=settings_for().cluster,
        host=host,
        pid=7,
        state=Cluster.State.RUNNING,
        heartbeat_us=DatabaseNow() - microseconds(silent_seconds),
        started_at=timezone.now(),
        info={"workers": workers},
    )


def test_cluster_with_an_old_heartbeat_is_silent_and_not_running() -> None:
    """Only the upkeep of another cluster deletes the row of a cluster that was killed."""
    sign_on("lost", silent_seconds=3600)
    found = numbers(scrape().text)
    assert found["stoker_clusters"]["running",] == 0
    assert found["stoker_clusters"]["silent",] == 1
    assert set(found["stoker_workers"].values()) == {0}
    assert set(found["stoker_jobs_running"].values()) == {0}
    sign_on("alive", silent_seconds=0)
    found = numbers(scrape().text)
    assert found["stoker_clusters"]["running",] == 1
    assert sum(found["stoker_workers"].values()) == 1


@pytest.mark.django_db(transaction=True)
def test_scrape_opens_no_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each scrape would be a writer on SQLite."""
    opened: list[bool] = []

    def scraped(accept: str) -> tuple[bytes, str]:
        opened.append(connection.in_atomic_block)
        return b"", "text/plain"

    monkeypatch.setattr(prometheus, "scrape", scraped)
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    assert scrape().status_code == 200
    assert opened == [False]


def test_openmetrics_format_is_supported() -> None:
    write(3)
    response = scrape(Accept="application/openmetrics-text; version=1.0.0")
    assert "openmetrics-text" in response.headers["Content-Type"]
    families = openmetrics_parser.text_string_to_metric_families(response.text)
    assert "stoker_jobs" in {family.name for family in families}


def test_unreadable_metrics_are_left_out_and_up_is_zero() -> None:
    write(3)
    with mock.patch.object(
        prometheus_numbers, "queues", side_effect=BrokerUnavailable("it is gone")
    ):
        found = numbers(scrape().text)
    assert found["stoker_up"] == {(): 0}
    assert "stoker_queue_jobs" not in found
    assert "stoker_jobs_total" in found


def test_two_backends_of_one_store_are_counted_once() -> None:
    write(3)
    entry = {"BACKEND": "stoker.backend.StokerBackend", "OPTIONS": {"REPORTERS": ["prometheus"]}}
    with override_settings(TASKS={"default": entry, "other": entry}):
        text, _ = prometheus.scrape("")
    assert text.count(b'outcome="successful"') == 1
    assert b'stoker_up{backend="other"} 1.0' in text


def test_queues_of_two_clusters_at_one_redis_are_both_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    depth = QueueDepth("default", 3, 0, 0, 0, True, None)
    monkeypatch.setattr(prometheus, "queues", lambda settings: [depth])
    entries = {
        alias: {
            "BACKEND": "stoker.backend.StokerBackend",
            "OPTIONS": {
                "BROKER": "redis://127.0.0.1:1",
                "CLUSTER": cluster,
                "REPORTERS": ["prometheus"],
            },
        }
        for alias, cluster in (("default", "shop"), ("same", "shop"), ("other", "news"))
    }
    with override_settings(TASKS=entries):
        text, _ = prometheus.scrape("")
    told = re.findall(rb'stoker_queue_jobs{backend="(\w+)",queue="default",state="ready"}', text)
    assert told == [b"default", b"other"]


def test_frequent_scrapes_read_the_store_once(django_assert_num_queries: Any) -> None:
    with mock.patch.object(prometheus, "FRESH_SECONDS", 60.0):
        scrape()
        with django_assert_num_queries(0):
            assert scrape().status_code == 200


# -- access ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer wrong", f"Basic {TOKEN}"])
def test_wrong_token_gives_403(header: str) -> None:
    response = Client().get("/metrics", headers={"Authorization": header})
    assert response.status_code == 403
    assert b"stoker_" not in response.content


def test_token_suffices_if_the_project_requires_login(settings: Any) -> None:
    sessions = "django.contrib.sessions.middleware.SessionMiddleware"
    auth = "django.contrib.auth.middleware"
    settings.MIDDLEWARE = [
        sessions,
        f"{auth}.AuthenticationMiddleware",
        f"{auth}.LoginRequiredMiddleware",
    ]
    assert scrape().status_code == 200
    assert Client().get("/metrics").status_code == 403


def test_empty_token_gives_403_if_none_is_configured() -> None:
    entry = {"BACKEND": "stoker.backend.StokerBackend", "OPTIONS": {"REPORTERS": ["prometheus"]}}
    with override_settings(TASKS={"default": entry}):
        assert Client().get("/metrics", headers={"Authorization": "Bearer "}).status_code == 403


def test_metrics_give_404_without_the_reporter() -> None:
    with override_settings(TASKS={"default": {"BACKEND": "stoker.backend.StokerBackend"}}):
        assert scrape().status_code == 404


def test_post_gives_405() -> None:
    assert Client().post("/metrics").status_code == 405


# -- the dashboard --------------------------------------------------------------------------------


def test_dashboard_queries_exactly_the_exported_metrics() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    asked = [target["expr"] for panel in _panels(dashboard) for target in panel.get("targets", ())]
    asked += [
        variable["query"] for variable in dashboard["templating"]["list"] if "query" in variable
    ]
    assert len(asked) > 10
    told = {f"{name}_total" for name in prometheus_numbers.COUNTERS} | {*prometheus_numbers.GAUGES}
    labels = {
        label
        for known in (prometheus_numbers.COUNTERS, prometheus_numbers.GAUGES)
        for _, names in known.values()
        for label in names
    }
    queried = {name for text in asked for name in re.findall(r"stoker_\w+", str(text))}
    assert queried <= told, queried - told
    assert told - queried == set(), "a metric that no panel shows"
    grouped = {
        label.strip()
        for text in asked
        for names in re.findall(r"by \(([^)]*)\)", str(text))
        for label in names.split(",")
    }
    assert grouped <= labels


def _panels(dashboard: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for panel in dashboard["panels"]:
        yield panel
        yield from panel.get("panels", ())


def test_unknown_wait_of_ready_jobs_has_no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker outside the database does not tell since when a job is ready."""
    depths = [
        QueueDepth(name, ready, 0, 0, 0, True, None) for name, ready in (("full", 3), ("empty", 0))
    ]
    monkeypatch.setattr(prometheus, "queues", lambda settings: depths)
    samples = list(prometheus._waiting(settings_for()))
    waits = [labels for name, labels, _ in samples if name == "stoker_queue_oldest_ready_seconds"]
    assert waits == [("empty",)]
