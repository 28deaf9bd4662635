"""Webhooks of a real cluster, received by an HTTP server."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import OperationalError

from stoker import dead_letters, every, once, schedules
from stoker.models import DeadLetter, Job
from stoker.reporters import webhook
from stoker.reporters.desk import desk
from stoker.reporters.webhook import (
    EVENTS,
    WebhookFailed,
    WebhookGone,
    WebhookReporter,
    send_webhook,
    signature,
)

from tests.app import cancelling, reported
from tests.cluster.clusters import running_cluster, wait_for
from tests.cluster.ends import end_of
from tests.servers.private import free_port

pytestmark = [pytest.mark.sqlite, pytest.mark.usefixtures("db")]

SECRET = "for the tests of webhooks only"


class Server:
    """Keeps the requests that it receives, and answers with ``status``."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.status = 200
        self.received: list[tuple[dict[str, str], bytes]] = []

    def events(self, kind: str) -> list[dict[str, Any]]:
        found = [json.loads(body) for _, body in self.received]
        return [one for one in found if one["type"] == kind]


@contextmanager
def serving() -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            server.received.append(({k.lower(): v for k, v in self.headers.items()}, body))
            self.send_response(server.status)
            self.send_header("Location", "/elsewhere")
            self.end_headers()
            self.wfile.write(b"no, thanks")

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        server = Server(f"http://127.0.0.1:{http.server_port}/hooks")
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield server
        http.shutdown()


def options(server: Server, **more: Any) -> dict[str, Any]:
    return {"url": server.url, "secret": SECRET, "events": list(EVENTS), **more}


def test_events_of_a_cluster_are_sent_signed_retried_and_replayed(
    shared_database: None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with (
        serving() as server,
        running_cluster(
            tmp_path_factory.mktemp("cluster"),
            REPORTERS={"webhook": options(server, arguments=True, name="ops")},
        ) as cluster,
    ):
        cluster.wait_for_crew()
        server.status = 500
        failed = end_of(reported.fail.enqueue("A-1", password="hunter2"), cluster)
        wait_for(lambda: server.received, cluster.tail)
        server.status = 204
        end_of(reported.succeed.enqueue(1, second=2), cluster)
        end_of(reported.fail_once.enqueue(), cluster)
        soon = datetime.now(UTC) + timedelta(seconds=1)
        schedules.create("nightly", reported.succeed, once(soon, args=[1, 2]))

        def has_all() -> bool:
            return (
                len(server.events("job.failed")) >= 2
                and len(server.events("job.retried")) >= 1
                and len(server.events("job.succeeded")) >= 3
                and len(server.events("schedule.fired")) >= 1
            )

        wait_for(has_all, cluster.tail)
        first, again = server.events("job.failed")[:2]
        assert first == again, "the second attempt sends the same event"
        assert first["data"]["job"]["job_id"] == str(failed.job.pk)
        assert first["data"]["error"]["message"] == "no such order: A-1"
        assert "hunter2" not in str(first)
        assert server.events("schedule.fired")[0]["data"]["schedule"] == "nightly"
        assert "A-1" in first["data"]["arguments"]["order"]
        for headers, body in server.received:
            signed = headers["webhook-id"], headers["webhook-timestamp"]
            assert headers["webhook-signature"] == signature(SECRET, *signed, body)
        assert len({headers["webhook-id"] for headers, _ in server.received}) >= 4

        server.status = 410
        end_of(reported.fail.enqueue("A-2", password="hunter2"), cluster)
        sender = "stoker.reporters.webhook.send_webhook"
        wait_for(lambda: DeadLetter.objects.filter(task=sender).exists(), cluster.tail)
        letter = DeadLetter.objects.get(task=sender)
        assert "ops answered 410: no, thanks" in letter.message
        server.status = 200
        dead_letters.requeue(letter.pk)
        wait_for(lambda: len(received_about(server, b"A-2")) == 2, cluster.tail)
        refused, replayed = received_about(server, b"A-2")
        assert refused[0]["webhook-id"] == replayed[0]["webhook-id"]
        assert refused[1] == replayed[1]
        assert not [one for one in server.received if sender in str(one)], "its own jobs"


def test_cancelled_jobs_and_skipped_ticks_are_sent(
    shared_database: None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The tick after the first is skipped, because the job of the first one still runs."""
    folder = tmp_path_factory.mktemp("cluster")
    wanted = ["job.cancelled", "schedule.skipped"]
    with (
        serving() as server,
        running_cluster(folder, REPORTERS={"webhook": options(server, events=wanted)}) as cluster,
    ):
        cluster.wait_for_crew()
        rule = every(seconds=1, args=[str(folder / "pid"), 3600.0], overlap="skip")
        schedules.create("long", reported.sleep, rule)

        def skipped() -> list[dict[str, Any]]:
            told = [one["data"] for one in server.events("schedule.skipped")]
            return [one for one in told if one["outcome"] == "skipped"]  # a late one is missed

        wait_for(skipped, cluster.tail)
        schedules.pause("long")
        tick = skipped()[0]
        assert (tick["schedule"], tick["job_id"], tick["count"]) == ("long", None, 1)

        job = Job.objects.get(task=reported.sleep.module_path)
        wait_for((folder / "pid").exists, cluster.tail)
        reported.sleep.get_result(str(job.pk)).cancel("it takes too long")
        wait_for(lambda: server.events("job.cancelled"), cluster.tail)
        (cancelled,) = server.events("job.cancelled")
        assert cancelled["data"]["job"]["job_id"] == str(job.pk)
        assert not server.events("schedule.fired"), "only what the receiver wants"


def test_cancellation_that_the_worker_cannot_report_is_sent(
    shared_database: None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """One task ignores its cancellation, so its worker is killed. The other fails, and would be
    retried."""
    folder = tmp_path_factory.mktemp("cluster")
    with serving() as server:
        reporters = {"webhook": options(server, events=["job.cancelled"])}
        with running_cluster(folder, REPORTERS=reporters) as cluster:
            for task in (cancelling.do_not_listen, cancelling.fail_when_told):
                server.received.clear()
                result = task.enqueue(str(folder / task.name))
                wait_for((folder / task.name).exists, cluster.tail)
                result.cancel("it is enough")
                wait_for(lambda: server.events("job.cancelled"), cluster.tail)
                (cancelled,) = server.events("job.cancelled")
                job = cancelled["data"]["job"]
                assert (job["job_id"], job["task"]) == (str(result.id), task.module_path)
                assert (job["attempt"], bool(job["worker"])) == (1, True)


def received_about(server: Server, text: bytes) -> list[tuple[dict[str, str], bytes]]:
    return [one for one in server.received if text in one[1]]


def send(url: str, settings: Any) -> None:
    reporter = {"webhook": {"url": url, "secret": SECRET, "name": "ops"}}
    backend = {"BACKEND": "stoker.backend.StokerBackend", "OPTIONS": {"REPORTERS": reporter}}
    settings.TASKS = {"default": backend}
    context: Any = SimpleNamespace(task_result=SimpleNamespace(backend="default"))
    send_webhook.func(context, "ops", "job.failed", "1", "{}")


def test_redirects_are_not_followed(settings: Any) -> None:
    with serving() as server:
        server.status = 302
        with pytest.raises(WebhookFailed, match="ops answered 302"):
            send(server.url, settings)
    assert len(server.received) == 1


def test_request_to_an_unreachable_receiver_is_retried(settings: Any) -> None:
    with pytest.raises(WebhookFailed, match="ops cannot be reached"):
        send(f"http://127.0.0.1:{free_port()}/", settings)


def test_request_to_a_removed_receiver_is_not_retried() -> None:
    context: Any = SimpleNamespace(task_result=SimpleNamespace(backend="default"))
    with pytest.raises(WebhookGone, match="name no webhook for ops"):
        send_webhook.func(context, "ops", "job.failed", "1", "{}")


def test_several_receivers_get_their_own_events(settings: Any) -> None:
    with serving() as one, serving() as other:
        settings.TASKS = tasks_with(
            options(one, name="ops"), options(other, name="audit", events=["job.succeeded"])
        )
        desk.open()
        assert desk.problems == []
        context: Any = SimpleNamespace(task_result=SimpleNamespace(backend="default"))
        send_webhook.func(context, "audit", "job.succeeded", "1", '{"type": "job.succeeded"}')
        assert len(other.events("job.succeeded")) == 1
        assert one.received == []


def test_two_receivers_of_one_name_are_refused(settings: Any) -> None:
    url = "https://ops.example/hooks/"
    settings.TASKS = tasks_with(
        {"url": f"{url}1", "secret": SECRET}, {"url": f"{url}2", "secret": SECRET}
    )
    desk.open()
    [problem] = desk.problems
    assert "two of 'webhook' are named 'ops.example'. Give each a different `name`." in problem


def tasks_with(*receivers: dict[str, Any]) -> dict[str, Any]:
    backend = "stoker.backend.StokerBackend"
    return {"default": {"BACKEND": backend, "OPTIONS": {"REPORTERS": {"webhook": [*receivers]}}}}


def backends(queues: list[str], **more: Any) -> dict[str, Any]:
    """Return settings of which the second backend has a webhook, and no queue named default."""
    stoker = "stoker.backend.StokerBackend"
    receiver = {"url": "https://ops.example/", "secret": SECRET, **more}
    reporters = {"REPORTERS": {"webhook": receiver}}
    return {
        "default": {"BACKEND": stoker},
        "bank": {"BACKEND": stoker, "QUEUES": queues, "OPTIONS": reporters},
    }


@pytest.mark.parametrize(
    ("queues", "more", "queue"),
    [
        (["mail", "audit"], {}, "audit"),
        (["audit", "default"], {}, "default"),
        ([], {}, "default"),
        (["mail", "audit"], {"queue": "mail"}, "mail"),
    ],
)
def test_job_waits_in_a_queue_that_the_backend_has(
    queues: list[str], more: dict[str, Any], queue: str, settings: Any, transactional_db: None
) -> None:
    settings.TASKS = backends(queues, **more)
    reporter = WebhookReporter(url="https://ops.example/", secret=SECRET, **more)
    jobs = Job.objects.filter(task=send_webhook.module_path)
    earlier = list(jobs.values_list("pk", flat=True))
    reporter.begin("worker")
    reporter._put("bank", "job.failed", {})
    reporter.flush(3600)
    assert jobs.exclude(pk__in=earlier).get().queue == queue


def test_queue_that_the_backend_does_not_have_is_refused(settings: Any) -> None:
    settings.TASKS = backends(["mail", "audit"], queue="default")
    desk.open()
    [problem] = desk.problems
    assert "'webhook' names the queue 'default', but QUEUES has audit, mail." in problem


def test_error_before_the_enqueue_is_logged(
    settings: Any, transactional_db: None, caplog: pytest.LogCaptureFixture
) -> None:
    settings.TASKS = backends(["mail"])
    reporter = WebhookReporter(url="https://ops.example/", secret=SECRET, queue="gone")
    reporter.begin("worker")
    reporter._put("bank", "job.failed", {})
    reporter.flush(3600)
    assert "1 event was lost so far" in caplog.text
    assert "InvalidTask" in caplog.text


class Shaky:
    """Stands for the task. The first ``failures`` enqueues raise."""

    module_path = send_webhook.module_path

    def __init__(self, failures: int) -> None:
        self.left = failures
        self.tried: list[str] = []

    def using(self, **changes: Any) -> "Shaky":
        self.real = send_webhook.using(**changes)
        return self

    def enqueue(self, receiver: str, event: str, event_id: str, body: str) -> None:
        self.tried.append(event_id)
        self.left -= 1
        if self.left >= 0:
            raise OperationalError("the server is away")
        self.real.enqueue(receiver, event, event_id, body)


def test_enqueue_is_retried_while_the_store_is_away(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shaky = Shaky(2)
    monkeypatch.setattr(webhook, "send_webhook", shaky)
    monkeypatch.setattr(webhook, "PAUSES_SECONDS", (0.0, 0.0, 0.0))
    reporter = WebhookReporter(url="https://ops.example/", secret=SECRET)
    reporter.begin("worker")
    jobs = Job.objects.filter(task=send_webhook.module_path)
    earlier = list(jobs.values_list("pk", flat=True))
    reporter._put("default", "job.failed", {})
    reporter.flush(3600)
    assert jobs.exclude(pk__in=earlier).count() == 1
    assert len(shaky.tried) == 3
    assert len(set(shaky.tried)) == 1, "its id stays, so the receiver knows a repeated event"
    assert "lost" not in caplog.text


def test_lost_events_are_counted(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(webhook, "send_webhook", Shaky(1000))
    monkeypatch.setattr(webhook, "PAUSES_SECONDS", (0.0, 0.0))
    reporter = WebhookReporter(url="https://ops.example/", secret=SECRET)
    reporter.begin("worker")
    for _ in range(12):
        reporter._put("default", "job.failed", {})
    reporter.flush(3600)
    lost = [one.message for one in caplog.records if "lost" in one.message]
    assert len(lost) == 2
    assert "10 events were lost so far" in lost[1]


@pytest.fixture(autouse=True)
def closed_desk(settings: Any) -> Iterator[None]:
    """Forget the reporters that a test's settings named."""
    before = settings.TASKS
    yield
    settings.TASKS = before
    desk.open()


def test_signature_agrees_with_the_example_of_the_standard() -> None:
    """https://github.com/standard-webhooks/standard-webhooks"""
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    event = "msg_p5jXN8AQM9LWM0D4loKWxJek"
    found = signature(secret, event, "1614265330", b'{"test": 2432232314}')
    assert found == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"url": "ftp://ops.example/"}, "url: "),
        ({"url": "https:///hooks"}, "url: "),
        ({"url": "https://ann:hunter2@ops.example/"}, "url: leave out the user name"),
        ({"url": "ftp://ann:hunter2@ops.example/"}, "url: leave out the user name"),
        ({"secret": "short"}, "secret: "),
        ({"secret": "whsec_no base64 at all!"}, "secret: "),
        ({"events": ["job.exploded"]}, "events: "),
        ({"events": "job.failed"}, "events: "),
    ],
)
def test_wrong_options_are_refused(changed: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as refused:
        WebhookReporter(**{"url": "https://ops.example/", "secret": SECRET, **changed})
    assert "hunter2" not in str(refused.value)
