"""Reports of a real cluster to Sentry, Rollbar and an OpenTelemetry collector, parsed from what
their own SDKs send."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen
from uuid import UUID

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from stoker import every, schedules
from stoker.models import Schedule

from tests.app import reported
from tests.cluster.clusters import ProcessCluster, wait_for
from tests.cluster.ends import end_of, value_of
from tests.reporters.conftest import PORT, TOKEN
from tests.reporters.receiver import Receiver

pytestmark = [pytest.mark.usefixtures("db"), pytest.mark.sqlite]

PRODUCER, CONSUMER = 4, 5
"""Kinds of spans in OTLP."""

IBAN = "DE02120300000000202051"

Tell = Callable[[str], str]


@pytest.fixture(scope="module")
def tell(
    cluster: ProcessCluster, receiver: Receiver, tmp_path_factory: pytest.TempPathFactory
) -> Tell:
    """Return the job id for each way of ending. Jobs that kill their workers come last: what a
    killed worker had not sent is lost."""
    enqueued = {
        "success": reported.succeed.enqueue(1, second=2),
        "async": reported.succeed_later.enqueue(1),
        "failure": reported.fail.enqueue("A-1", password="hunter2"),
        "secrets": reported.fail_with_secrets.enqueue(IBAN, {"api_token": "tok-4711"}),
        "stack": reported.log_with_secrets.enqueue(IBAN),
        "popped": reported.fail_after_pop.enqueue({"api_key": "tok-4711", "owner": "ann"}),
        "retry": reported.fail_once.enqueue(),
        "soft time-out": reported.take_too_long.enqueue(),
    }
    wanted = {str(end_of(result, cluster).job.pk) for result in enqueued.values()}
    attempts = len(enqueued) + 1  # one job is retried

    def told_of_all() -> bool:
        spans = [one["attributes"] for one in receiver.spans() if one["kind"] == CONSUMER]
        transactions = [one["contexts"]["trace"]["data"] for one in receiver.sentry("transaction")]
        return all(
            sum(one.get("messaging.message.id") in wanted for one in told) >= attempts
            for told in (spans, transactions)
        ) and all(
            counted(receiver, name) >= attempts
            for name in ("messaging.client.consumed.messages", "messaging.process.duration")
        )

    receiver.wait_for(
        told_of_all,
        f"not all is told of: {enqueued}\n{cluster.tail()}",
    )
    path = tmp_path_factory.mktemp("killed") / "pid"
    enqueued["hard time-out"] = reported.ignore_the_time_out.enqueue()
    enqueued["crash"] = reported.sleep.enqueue(str(path), 60.0)
    wait_for(lambda: path.exists() and path.read_text(), cluster.tail)
    psutil.Process(int(path.read_text())).kill()
    for result in enqueued.values():
        end_of(result, cluster)
    return lambda name: str(enqueued[name].id)


def counted(receiver: Receiver, name: str) -> int:
    """Return the sum of this metric over all processes."""
    points = [one for one in receiver.points() if one["name"] == name]
    return round(sum(one.get("count", one.get("value", 0)) for one in points))


# -- Sentry ---------------------------------------------------------------------------------------


def events_of(receiver: Receiver, job_id: str, count: int = 1) -> list[dict[str, Any]]:
    def found() -> list[dict[str, Any]]:
        events = receiver.sentry("event")
        return [one for one in events if one["contexts"].get("stoker", {}).get("job_id") == job_id]

    receiver.wait_for(lambda: len(found()) >= count, f"an event of {job_id}")
    assert len(found()) == count, [one.get("logger") for one in found()]
    return found()


def transaction_of(receiver: Receiver, job_id: str) -> dict[str, Any]:
    def found() -> list[dict[str, Any]]:
        return [
            one
            for one in receiver.sentry("transaction")
            if one["contexts"]["trace"]["data"].get("messaging.message.id") == job_id
        ]

    return receiver.wait_for(found, f"a transaction of {job_id}")[0]


def test_sentry_gets_an_error_once_with_its_job(tell: Tell, receiver: Receiver) -> None:
    (event,) = events_of(receiver, job_id := tell("failure"))
    raised = event["exception"]["values"][-1]
    assert (raised["type"], raised["value"]) == ("ValueError", "no such order: A-1")
    assert raised["stacktrace"]["frames"][-1]["function"] == "fail"
    assert raised["mechanism"] == {"type": "stoker", "handled": False}
    assert (event["level"], event["transaction"]) == ("error", "tests.app.reported.fail")
    told = event["contexts"]["stoker"]
    assert told["queue"] == "default"
    assert (told["attempt"], told["reason"], told["is_final"]) == (1, "error", True)
    assert event["contexts"]["arguments"] == {"order": "'A-1'", "password": "[withheld]"}
    assert event["tags"]["stoker.job_id"] == job_id
    transaction = transaction_of(receiver, job_id)
    assert transaction["contexts"]["trace"]["status"] == "internal_error"
    assert event["contexts"]["trace"]["trace_id"] == transaction["contexts"]["trace"]["trace_id"]
    assert "hunter2" not in str(event)
    assert raised["stacktrace"]["frames"][-1]["vars"]["order"] == "'A-1'"


def test_sentry_gets_no_hidden_argument_in_local_variables(tell: Tell, receiver: Receiver) -> None:
    (event,) = events_of(receiver, tell("secrets"))
    assert IBAN not in str(event)
    assert "tok-4711" not in str(event)
    found = event["exception"]["values"][-1]["stacktrace"]["frames"][-1]["vars"]
    assert (found["iban"], found["copied"]) == ("[withheld]", "'paid by [withheld]'")
    assert found["more"] == {"api_token": "[withheld]"}


def test_sentry_gets_no_hidden_argument_in_a_logged_stack(tell: Tell, receiver: Receiver) -> None:
    (event,) = events_of(receiver, tell("stack"))
    (thread,) = event["threads"]["values"]
    frames = {one["function"]: one.get("vars") for one in thread["stacktrace"]["frames"]}
    assert frames["log_with_secrets"] == {"iban": "[withheld]"}
    assert IBAN not in str(event)


def test_sentry_gets_a_soft_time_out(tell: Tell, receiver: Receiver) -> None:
    (event,) = events_of(receiver, tell("soft time-out"))
    assert event["exception"]["values"][-1]["type"] == "TaskTimeout"
    assert event["contexts"]["stoker"]["reason"] == "timeout"


def test_sentry_gets_arguments_as_enqueued(tell: Tell, receiver: Receiver) -> None:
    """The task has removed a hidden one."""
    (event,) = events_of(receiver, tell("popped"))
    assert "tok-4711" not in str(event)
    assert event["contexts"]["arguments"] == {"account": "{'api_key': [withheld], 'owner': 'ann'}"}


@pytest.mark.parametrize(
    ("name", "reason", "raised"),
    [("hard time-out", "timeout", "TaskKilled"), ("crash", "crash", "WorkerCrashed")],
)
def test_sentry_gets_kills_and_crashes_of_workers(
    name: str, reason: str, raised: str, tell: Tell, receiver: Receiver
) -> None:
    (event,) = events_of(receiver, tell(name))
    assert event["exception"]["values"][0]["type"] == raised
    assert "SIGKILL" in event["exception"]["values"][0]["value"] or reason == "timeout"
    assert (event["level"], event["contexts"]["stoker"]["reason"]) == ("error", reason)
    if name == "crash":
        assert event["contexts"]["arguments"]["seconds"] == "60.0"


def test_sentry_gets_no_event_for_retried_attempts(tell: Tell, receiver: Receiver) -> None:
    job_id = tell("retry")
    transaction_of(receiver, job_id)
    assert not [one for one in receiver.sentry("event") if job_id in str(one["contexts"])]


def test_sentry_trace_connects_enqueue_and_run(cluster: ProcessCluster, receiver: Receiver) -> None:
    first = reported.enqueue_another.enqueue(failing=False)
    second = value_of(first, cluster)
    enqueuing, run = (transaction_of(receiver, job_id) for job_id in (str(first.id), second))
    (span,) = [one for one in enqueuing["spans"] if one["op"] == "queue.publish"]
    assert span["data"]["messaging.message.id"] == second
    assert span["data"]["messaging.destination.name"] == "default"
    trace = run["contexts"]["trace"]
    assert (trace["trace_id"], trace["parent_span_id"]) == (span["trace_id"], span["span_id"])
    assert (trace["op"], trace["status"]) == ("queue.process", "ok")
    assert trace["data"]["messaging.message.receive.latency"] >= 0
    assert trace["data"]["messaging.message.retry.count"] == 0


@pytest.mark.parametrize("fails", [False, True])
def test_sentry_gets_a_check_in_for_each_tick(
    fails: bool, cluster: ProcessCluster, receiver: Receiver
) -> None:
    name = f"Nightly {'failure' if fails else 'success'}"
    if fails:
        every_day = every(days=1, args=["A-1", "x"], tz="Europe/Berlin")
        schedules.create(name, reported.fail, every_day)
    else:
        schedules.create(name, reported.succeed, every(minutes=90, args=[1, 2]))
    due_us = time.time_ns() // 1000
    Schedule.objects.filter(name=name).update(moment_us=due_us, due_us=due_us)

    def check_ins() -> list[dict[str, Any]]:
        found = receiver.sentry("check_in")
        return [one for one in found if one["monitor_slug"] == name.lower().replace(" ", "-")]

    both = receiver.wait_for(lambda: check_ins() if len(check_ins()) > 1 else None)
    # The receiver may note two simultaneous requests in either order.
    begun, ended = sorted(both, key=lambda one: bool(one["status"] != "in_progress"))
    assert (begun["status"], ended["status"]) == ("in_progress", "error" if fails else "ok")
    assert begun["check_in_id"] == ended["check_in_id"]
    wait_for(lambda: schedules.get(name).last_job_id is not None)
    assert UUID(begun["check_in_id"]) == schedules.get(name).last_job_id
    zone, unit = ("Europe/Berlin", "day") if fails else ("UTC", "minute")
    assert begun["monitor_config"]["timezone"] == zone
    assert begun["monitor_config"]["schedule"]["unit"] == unit


@pytest.mark.parametrize("ends", ["killed", "retried"])
def test_cancelled_tick_checks_in_as_an_error(
    ends: str, cluster: ProcessCluster, receiver: Receiver, tmp_path: Path
) -> None:
    """The monitor says so, because the attempt in the worker did not end as cancelled."""
    name, path = f"Cancelled {ends}", tmp_path / "pid"
    task = {"killed": reported.ignore_the_cancel, "retried": reported.fail_when_cancelled}[ends]
    schedules.create(name, task, every(minutes=90, args=[str(path)]))
    due_us = time.time_ns() // 1000
    Schedule.objects.filter(name=name).update(moment_us=due_us, due_us=due_us)
    wait_for(path.exists, cluster.tail)
    task.get_result(str(schedules.get(name).last_job_id)).cancel("it takes too long")

    def check_ins() -> list[dict[str, Any]]:
        found = receiver.sentry("check_in")
        return [one for one in found if one["monitor_slug"] == name.lower().replace(" ", "-")]

    both = receiver.wait_for(lambda: check_ins() if len(check_ins()) > 1 else None)
    assert {one["status"] for one in both} == {"in_progress", "error"}
    assert len({one["check_in_id"] for one in both}) == 1


def test_jobs_of_two_ticks_have_two_traces(cluster: ProcessCluster, receiver: Receiver) -> None:
    """One process enqueues both, outside of any request or job."""
    names = [f"Trace {number}" for number in range(2)]
    for name in names:
        schedules.create(name, reported.succeed, every(minutes=90, args=[1, 2]))
    due_us = time.time_ns() // 1000
    Schedule.objects.filter(name__in=names).update(moment_us=due_us, due_us=due_us)
    wait_for(lambda: all(schedules.get(name).last_job_id for name in names), cluster.tail)
    jobs = [str(schedules.get(name).last_job_id) for name in names]
    traces = {transaction_of(receiver, job)["contexts"]["trace"]["trace_id"] for job in jobs}
    assert len(traces) == 2


# -- Rollbar --------------------------------------------------------------------------------------


def item_of(receiver: Receiver, job_id: str) -> dict[str, Any]:
    def found() -> list[dict[str, Any]]:
        return [one for one in receiver.rollbar() if one["custom"]["stoker"]["job_id"] == job_id]

    (item,) = receiver.wait_for(found, f"an item of {job_id}")
    return item


def test_rollbar_gets_an_error_with_its_job(tell: Tell, receiver: Receiver) -> None:
    item = item_of(receiver, tell("failure"))
    assert item["body"]["trace"]["exception"]["class"] == "ValueError"
    assert item["body"]["trace"]["frames"][-1]["method"] == "fail"
    assert (item["level"], item["environment"]) == ("error", "tests")
    assert item["context"] == "tests.app.reported.fail"
    assert item["custom"]["arguments"]["order"] == "'A-1'"
    assert "hunter2" not in str(item)
    assert item["body"]["trace"]["frames"][-1]["locals"]["order"] == "A-1"
    assert item["custom"]["stoker"]["reason"] == "error"


def test_rollbar_gets_no_hidden_argument_in_local_variables(tell: Tell, receiver: Receiver) -> None:
    item = item_of(receiver, tell("secrets"))
    assert IBAN not in str(item)
    assert "tok-4711" not in str(item)
    assert "paid by [withheld]" in item["body"]["trace"]["frames"][-1]["locals"]["copied"]


def test_rollbar_gets_arguments_as_enqueued(tell: Tell, receiver: Receiver) -> None:
    """The task has removed a hidden one."""
    item = item_of(receiver, tell("popped"))
    assert "tok-4711" not in str(item)
    assert item["custom"]["arguments"] == {"account": "{'api_key': [withheld], 'owner': 'ann'}"}


@pytest.mark.parametrize(
    ("name", "reason"),
    [("soft time-out", "timeout"), ("hard time-out", "timeout"), ("crash", "crash")],
)
def test_rollbar_gets_time_outs_and_crashes(
    name: str, reason: str, tell: Tell, receiver: Receiver
) -> None:
    item = item_of(receiver, tell(name))
    assert item["custom"]["stoker"]["reason"] == reason
    if name != "soft time-out":
        told = {"timeout": "TaskKilled", "crash": "WorkerCrashed"}[reason]
        assert told in item["body"]["message"]["body"]


def test_rollbar_gets_only_final_failures(tell: Tell, receiver: Receiver) -> None:
    item_of(receiver, tell("failure"))
    well = {tell("success"), tell("retry")}
    assert not [one for one in receiver.rollbar() if one["custom"]["stoker"]["job_id"] in well]


# -- OpenTelemetry --------------------------------------------------------------------------------


def spans_of(receiver: Receiver, job_id: str, kind: int, count: int = 1) -> list[dict[str, Any]]:
    def found() -> list[dict[str, Any]]:
        return [
            one
            for one in receiver.spans()
            if one["attributes"].get("messaging.message.id") == job_id and one["kind"] == kind
        ]

    receiver.wait_for(lambda: len(found()) >= count, f"spans of {job_id}")
    assert len(found()) == count
    return found()


@pytest.mark.parametrize("name", ["success", "async"])
def test_each_run_is_a_span(name: str, tell: Tell, receiver: Receiver) -> None:
    (span,) = spans_of(receiver, tell(name), CONSUMER)
    assert span["name"] == "run default"
    attributes = span["attributes"]
    assert attributes["messaging.system"] == "stoker"
    assert attributes["messaging.operation.type"] == "process"
    assert attributes["messaging.operation.name"] == "run"
    assert attributes["messaging.destination.name"] == "default"
    assert (attributes["stoker.attempt"], attributes["stoker.outcome"]) == (1, "succeeded")
    assert not span["is_error"]


def test_span_of_a_failure_has_its_exception(tell: Tell, receiver: Receiver) -> None:
    (span,) = spans_of(receiver, tell("failure"), CONSUMER)
    assert span["is_error"]
    assert span["attributes"]["error.type"] == "builtins.ValueError"
    ((name, told),) = span["events"]
    assert (name, told["exception.type"]) == ("exception", "ValueError")
    assert "no such order" in told["exception.stacktrace"]


def test_each_attempt_is_a_span(tell: Tell, receiver: Receiver) -> None:
    spans = spans_of(receiver, tell("retry"), CONSUMER, count=2)
    told = {
        one["attributes"]["stoker.attempt"]: one["attributes"]["stoker.outcome"] for one in spans
    }
    assert told == {1: "retry", 2: "succeeded"}


@pytest.mark.parametrize(
    ("name", "raised"), [("hard time-out", "TaskKilled"), ("crash", "WorkerCrashed")]
)
def test_killed_worker_leaves_a_span(
    name: str, raised: str, tell: Tell, receiver: Receiver
) -> None:
    (span,) = spans_of(receiver, tell(name), CONSUMER)
    assert span["is_error"]
    assert span["attributes"]["error.type"] == f"stoker.jobs.record.{raised}"
    assert span["attributes"]["stoker.outcome"] == "failed"
    assert span["events"][0][1]["exception.type"].endswith(raised)
    if name == "hard time-out":
        assert span["seconds"] > 0.2


def test_spans_are_linked_across_the_queue(cluster: ProcessCluster, receiver: Receiver) -> None:
    first = reported.enqueue_another.enqueue(failing=True)
    second = value_of(first, cluster)
    (produced,) = spans_of(receiver, second, PRODUCER)
    (consumed,) = spans_of(receiver, second, CONSUMER)
    (enqueuing,) = spans_of(receiver, str(first.id), CONSUMER)
    assert produced["attributes"]["messaging.operation.type"] == "create"
    assert produced["parent_id"] == enqueuing["span_id"]
    assert consumed["parent_id"] == produced["span_id"]
    assert consumed["links"] == [(produced["trace_id"], produced["span_id"])]
    assert {one["trace_id"] for one in (enqueuing, produced, consumed)} == {produced["trace_id"]}


def test_metrics_have_run_and_wait_times(tell: Tell, receiver: Receiver) -> None:
    tell("success")

    def points(name: str, task: str, **wanted: str) -> list[dict[str, Any]]:
        return [
            one
            for one in receiver.points()
            if one["name"] == name
            and one["attributes"]["stoker.task"] == f"tests.app.reported.{task}"
            and wanted.items() <= one["attributes"].items()
        ]

    name = "messaging.process.duration"
    receiver.wait_for(lambda: points(name, "succeed", **{"stoker.outcome": "succeeded"}))
    crashed = {"error.type": "stoker.jobs.record.WorkerCrashed"}
    receiver.wait_for(lambda: points(name, "sleep", **crashed))
    (late,) = receiver.wait_for(lambda: points(name, "take_too_long"))
    assert (late["kind"], late["unit"], late["count"]) == ("histogram", "s", 1)
    assert 0.2 <= late["sum"] < 60
    assert late["attributes"]["messaging.system"] == "stoker"
    assert "messaging.message.id" not in late["attributes"]
    waited = receiver.wait_for(lambda: points("stoker.job.wait.duration", "fail_once"))
    assert sum(one["count"] for one in waited) == 1

    def begun() -> float:
        """Sum over both workers, each of which reports its own."""
        of_each = points("messaging.client.consumed.messages", "fail_once")
        return sum(one["value"] for one in of_each)

    receiver.wait_for(lambda: begun() >= 2)
    assert begun() == 2


# -- Prometheus -----------------------------------------------------------------------------------


def scraped(page: str = "metrics", token: str = TOKEN) -> dict[str, dict[str, float]]:
    """Return metric -> task and outcome -> value, from the cluster's port."""
    headers = {"Authorization": f"Bearer {token}"}
    request = Request(f"http://127.0.0.1:{PORT}/{page}", headers=headers)
    found: dict[str, dict[str, float]] = {}
    with urlopen(request) as response:  # noqa: S310 - as above
        for family in text_string_to_metric_families(response.read().decode()):
            for sample in family.samples:
                labels = [sample.labels.get(name) for name in ("task", "outcome")]
                found.setdefault(sample.name, {})[" ".join(filter(None, labels))] = sample.value
    return found


def jobs_of(task: str) -> dict[str, float]:
    """Return outcome -> number of jobs."""
    jobs = scraped().get("stoker_jobs_total", {})
    outcomes = ("successful", "failed", "cancelled")
    return {one: jobs.get(f"tests.app.reported.{task} {one}", 0.0) for one in outcomes}


def test_cluster_is_scraped_and_counts_every_outcome(tell: Tell, cluster: ProcessCluster) -> None:
    tell("success")
    failed = ("take_too_long", "ignore_the_time_out", "sleep")
    wait_for(lambda: all(jobs_of(task)["failed"] == 1 for task in failed), cluster.tail)
    assert jobs_of("fail_once") == {"successful": 1, "failed": 0, "cancelled": 0}
    found = scraped()
    assert found["stoker_retries_total"]["tests.app.reported.fail_once"] == 1
    assert found["stoker_run_seconds_total"]["tests.app.reported.ignore_the_time_out"] > 0.2
    assert found["stoker_clusters"][""] >= 0
    assert found["stoker_up"] == {"": 1}


def test_counters_continue_after_the_scheduler_is_killed(
    tell: Tell, cluster: ProcessCluster
) -> None:
    tell("success")
    before = scraped()["stoker_jobs_total"]
    killed = cluster.kill("scheduler")
    wait_for(lambda: {one.pid for one in cluster.crew().get("scheduler", [])} - {killed})

    def answers() -> bool:
        with suppress(OSError):
            return bool(scraped())
        return False

    wait_for(answers, cluster.tail)
    after = scraped()["stoker_jobs_total"]
    assert all(after[name] >= value for name, value in before.items())


@pytest.mark.parametrize(("page", "token", "status"), [("", TOKEN, 404), ("metrics", "x", 401)])
def test_metrics_port_refuses_other_paths_and_wrong_tokens(
    page: str, token: str, status: int, cluster: ProcessCluster
) -> None:
    with pytest.raises(HTTPError) as refused:
        scraped(page, token)
    refused.value.close()
    assert refused.value.code == status


# -- a broken reporter ----------------------------------------------------------------------------


def test_broken_reporter_is_logged_once_and_harms_no_job(
    tell: Tell, cluster: ProcessCluster
) -> None:
    tell("success")
    complaints = [line for line in cluster.text().splitlines() if "reported.Broken'" in line]
    assert all("it is broken" in line for line in complaints)
    assert sum("[worker" in line and "on_start" in line for line in complaints) >= 2
    assert sum("[monitor]" in line and "The begin of" in line for line in complaints) == 1
    assert sum("[monitor]" in line and "on_failure" in line for line in complaints) == 1
