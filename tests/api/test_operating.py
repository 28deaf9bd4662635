"""Health, status, queues and clusters over HTTP."""

import logging
import uuid
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection
from django.test import AsyncClient
from django.utils import timezone

from stoker.models import Cluster, Job, PausedQueue
from stoker.store.written import DatabaseNow

from tests.api.conftest import Caller
from tests.app.tasks import add

pytestmark = pytest.mark.django_db(transaction=True)


def sign_on(state: str = "running", **fields: Any) -> Cluster:
    """Add a cluster with a fresh heartbeat."""
    worker = {"number": 0, "id": "one:12345678:0.1", "pid": 8, "jobs_done": 3, "running": []}
    return Cluster.objects.create(
        id=uuid.uuid4(),
        name="stoker",
        host="one",
        pid=7,
        state=state,
        heartbeat_us=DatabaseNow(),
        started_at=timezone.now(),
        info={"alias": "default", "workers": [worker]},
        **fields,
    )


def test_liveness_makes_no_query_and_readiness_checks_the_store(
    nobody: Caller, django_assert_num_queries: Any
) -> None:
    with django_assert_num_queries(0):
        assert nobody.get("health/live") == {"live": True}
    assert nobody.call("HEAD", "health/live").status_code == 200
    assert nobody.get("health/ready") == {"ready": True, "because": "", "clusters": "none"}
    sign_on()
    assert nobody.get("health/ready")["clusters"] == "alive"


def test_readiness_names_no_backend(nobody: Caller) -> None:
    response = nobody.call("GET", "health/ready?backend=other")
    assert response.status_code == 404
    assert response.json()["detail"] == "Stoker has no backend 'other'."


def test_unmigrated_store_is_not_ready(
    nobody: Caller, anna: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("stoker.api.views.health.unapplied_migrations", lambda _: ["0099_later"])
        response = nobody.call("GET", "health/ready")
        assert (response.status_code, response.json()["because"]) == (
            503,
            "manage.py migrate is due",
        )
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE stoker_cluster RENAME TO stoker_elsewhere")
    try:
        assert nobody.call("GET", "health/ready").status_code == 503
        problem = anna.call("GET", "clusters")
        assert problem.status_code == 503
        assert "run manage.py migrate" in problem.json()["detail"]
        assert nobody.get("health/live") == {"live": True}
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE stoker_elsewhere RENAME TO stoker_cluster")


def test_cluster_health_needs_a_running_cluster(anna: Caller) -> None:
    none = anna.call("GET", "health/clusters")
    assert (none.status_code, none.json()["healthy"]) == (503, False)
    stopping = sign_on("stopping")
    assert "is stopping" in anna.call("GET", "health/clusters").json()["because"]
    sign_on()
    assert anna.get("health/clusters")["healthy"]
    Cluster.objects.exclude(pk=stopping.pk).update(heartbeat_us=0)
    assert anna.call("GET", "health/clusters").status_code == 503


def test_status_has_all_figures(anna: Caller) -> None:
    add.enqueue(1, 2)
    sign_on()
    status = anna.get("status")
    assert [(one["name"], one["ready"]) for one in status["queues"]] == [("default", 1)]
    assert status["clusters"][0]["workers"][0]["jobs_done"] == 3
    assert status["dead_letters"]["total"] == 0
    assert status["guards"]["keys"] == []


# -- queues ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("queue", ["mail", "a queue/of mine", "pause"])
def test_queue_is_paused_resumed_and_cleared(queue: str, anna: Caller) -> None:
    jobs = [add.using(queue_name=queue).enqueue(1, 2) for _ in range(3)]
    paused = anna.post(f"queues/{queue}/pause", {"because": "down"})
    assert (paused["name"], paused["ready"]) == (queue, 3)
    pause = PausedQueue.objects.get()
    assert (pause.queue, pause.by, pause.because) == (queue, "anna", "down")
    assert anna.get(f"queues/{queue}")["paused"]["by"] == "anna"
    assert [one["name"] for one in anna.get("queues")["queues"]] == [queue]
    anna.post(f"queues/{queue}/resume")
    assert not PausedQueue.objects.exists()
    rehearsal = anna.post(f"queues/{queue}/clear", {"dry_run": True})
    assert (rehearsal["matched"], rehearsal["done"]) == (3, 0)
    assert anna.post(f"queues/{queue}/clear", {"limit": 2, "because": "old"})["done"] == 2
    assert anna.post(f"queues/{queue}/clear")["done"] == 1
    reasons = set(Job.objects.values_list("status", "reason"))
    assert reasons == {
        ("CANCELLED", "the queue was cleared by anna: old"),
        ("CANCELLED", "the queue was cleared by anna"),
    }
    assert len(jobs) == 3
    anna.post(f"queues/{queue}/clear", {"limit": 1001}, 422)


def test_unknown_queue_gives_404(anna: Caller, settings: Any) -> None:
    settings.TASKS = {"default": {**settings.TASKS["default"], "QUEUES": ["default"]}}
    assert anna.call("GET", "queues/nowhere").status_code == 404
    anna.post("queues/nowhere/pause", status=404)
    assert anna.call("GET", "queues/" + "x" * 101).status_code == 422


# -- clusters -------------------------------------------------------------------------------------


def test_cluster_requests_are_shown_and_logged(
    anna: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "stoker")
    cluster = sign_on()
    path = f"clusters/{cluster.pk}"
    (shown,) = anna.get("clusters")["clusters"]
    assert (shown["id"], shown["workers"][0]["pid"]) == (str(cluster.pk), 8)
    assert anna.post(f"{path}/quiet")["request"] == "quiet"
    assert anna.post(f"{path}/quiet")["request"] == "quiet"
    assert anna.post(f"{path}/resume")["request"] == ""
    anna.post(f"{path}/resize", {"workers": 3}, status=409)
    anna.post(f"{path}/recycle", {}, status=409)
    Cluster.objects.update(info={**cluster.info, "most_workers": 4})
    assert anna.post(f"{path}/resize", {"workers": 3})["wanted_workers"] == 3
    assert anna.post(f"{path}/resize", {"workers": None})["wanted_workers"] is None
    anna.post(f"{path}/resize", {"workers": 0}, status=422)
    anna.post(f"{path}/resize", {}, status=422)
    assert anna.post(f"{path}/recycle", {})["workers"][0]["is_recycled"]
    anna.post(f"{path}/recycle", {"worker": 99}, status=409)
    assert anna.post(f"{path}/stop")["request"] == "stop"
    assert anna.post(f"{path}/stop")["request"] == "stop"
    for word in ("resume", "recycle", "resize"):
        anna.post(f"{path}/{word}", {"workers": 3} if word == "resize" else {}, status=409)
    assert f"anna asked the cluster {cluster.pk}: quiet." in caplog.text
    assert anna.get(path)["request"] == "stop"
    for word in ("quiet", "resume", "stop"):
        anna.post(f"clusters/{uuid.uuid4()}/{word}", status=404)


# -- several backends -----------------------------------------------------------------------------


def test_backend_can_be_chosen(anna: Caller, settings: Any) -> None:
    entry = settings.TASKS["default"]
    settings.TASKS = {
        "default": {**entry, "QUEUES": ["default"]},
        "slow": {**entry, "QUEUES": ["slow"]},
        "dummy": {"BACKEND": "stoker.compat.nothing"},
    }
    names = {
        backend: {one["name"] for one in anna.get("queues", backend=backend)["queues"]}
        for backend in ("default", "slow")
    }
    assert names == {"default": {"default"}, "slow": {"slow"}}
    for nowhere in ("nowhere", "dummy"):
        response = anna.client.get("/stoker/queues", {"backend": nowhere})
        assert response.status_code == 404, nowhere
        assert "Known: default, slow" in response.json()["detail"]
    made = anna.client.post(
        "/stoker/jobs?backend=slow",
        {"task": "numbers.add", "args": [1], "queue": "slow"},
        content_type="application/json",
    )
    assert made.status_code == 201, made.content
    assert made.headers["Location"] == f"/stoker/jobs/{made.json()['id']}?backend=slow"
    assert anna.client.get(made.headers["Location"]).status_code == 200


def test_single_backend_need_not_be_named(anna: Caller, settings: Any) -> None:
    settings.TASKS = {"jobs": {**settings.TASKS["default"], "QUEUES": ["mine"]}}
    assert [one["name"] for one in anna.get("queues")["queues"]] == ["mine"]


def test_api_works_with_asgi(anna: Caller) -> None:
    assert anna.user is not None
    client = AsyncClient()
    client.force_login(anna.user)
    call = {"task": "numbers.add", "args": [1]}
    made = async_to_sync(client.post)("/stoker/jobs", call, "application/json")
    assert made.status_code == 201
    seen = async_to_sync(client.get)(made.headers["Location"])
    assert seen.json()["state"] == "READY"


class InChunks(AsyncClient):
    """Send no Content-Length header."""

    async def request(self, **request: Any) -> Any:
        request["headers"] = [one for one in request["headers"] if one[0] != b"content-length"]
        return await super().request(**request)


def test_size_limit_applies_to_chunked_bodies(anna: Caller, settings: Any) -> None:
    assert anna.user is not None
    settings.STOKER_API = {"MAX_BODY_BYTES": 2000}
    client = InChunks()
    client.force_login(anna.user)
    for blanks, status in ((1000, 201), (2000, 413)):
        call = "{%s}" % (" " * blanks + '"task": "numbers.add", "args": [1]')
        made = async_to_sync(client.post)("/stoker/jobs", call, "application/json")
        assert made.status_code == status, made.content
