"""Jobs over HTTP: only exposed tasks, with valid arguments."""

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db.models import F

from stoker.models import Deferred, Job, Ready
from stoker.tasks.registry import exposed_tasks

from tests.api.conftest import Caller
from tests.app import payments
from tests.app.exposed import add
from tests.app.noting import count_quickly
from tests.app.tasks import fail
from tests.integration.work import outside_the_database, work_off

pytestmark = pytest.mark.django_db(transaction=True)


def work_all() -> None:
    while work_off():
        pass


def test_enqueued_job_is_shown_until_its_result(anna: Caller) -> None:
    response = anna.call(
        "POST", "jobs", {"task": "numbers.add", "args": [40], "kwargs": {"second": 2}}
    )
    made = response.json()
    assert (response.status_code, made["task"], made["state"]) == (201, "numbers.add", "READY")
    assert response.headers["Location"] == f"/stoker/jobs/{made['id']}"
    seen = anna.client.get(response.headers["Location"]).json()
    assert (seen["state"], seen["attempts"], seen["return_value"]) == ("READY", 0, None)
    assert (seen["args"], seen["kwargs"], seen["task"]) == ([40], {"second": 2}, add.module_path)
    work_all()
    seen = anna.get(f"jobs/{made['id']}")
    assert (seen["state"], seen["attempts"], seen["return_value"]) == ("SUCCESSFUL", 1, 42)
    assert seen["finished_at"]


def test_job_at_the_broker_is_shown_with_its_call(anna: Caller, settings: Any) -> None:
    settings.TASKS = outside_the_database()
    result = add.using(queue_name="mail", priority=7, run_after=3600).enqueue(1, second=2)
    seen = anna.get(f"jobs/{result.id}")
    assert (seen["task"], seen["args"], seen["kwargs"]) == (add.module_path, [1], {"second": 2})
    assert (seen["queue"], seen["priority"], seen["state"]) == ("mail", 7, "DEFERRED")
    assert seen["enqueued_at"] < seen["run_after"]
    assert seen["waits"] is not None


def test_change_of_a_job_at_the_broker_says_what_to_do(anna: Caller, settings: Any) -> None:
    settings.TASKS = outside_the_database()
    result = add.using(run_after=3600).enqueue(1, 2)
    refused = anna.post(f"jobs/{result.id}/hold", {}, 409)
    assert refused["detail"] == (
        "The job was not changed: jobs of a backend with a broker outside the database cannot be "
        "changed. Cancel it, and enqueue it again."
    )


def test_progress_of_a_job_is_shown(anna: Caller) -> None:
    result = count_quickly.enqueue(10)
    assert anna.get(f"jobs/{result.id}")["progress"] is None
    work_all()
    seen = anna.get(f"jobs/{result.id}")
    assert seen["progress"] == {"done": 10.0, "total": 10.0, "message": ""}


def test_errors_of_a_job_are_shown(anna: Caller) -> None:
    result = fail.using(max_attempts=1).enqueue("x")
    work_all()
    seen = anna.get(f"jobs/{result.id}")
    assert seen["state"] == "FAILED"
    (error,) = seen["errors"]
    assert error["exception_class"]
    assert "Traceback" in error["traceback"]


def test_queue_priority_and_run_after_are_applied(anna: Caller) -> None:
    call = {"task": "numbers.add", "args": [1], "queue": "mail", "priority": 7}
    later = anna.post("jobs", {**call, "run_after_seconds": 3600}, 201)
    moment = anna.post("jobs", {**call, "run_after": "2099-01-31T06:00:00+01:00"}, 201)
    assert Deferred.objects.count() == 2
    seen = anna.get(f"jobs/{moment['id']}")
    assert (seen["queue"], seen["priority"], seen["state"]) == ("mail", 7, "DEFERRED")
    assert seen["run_after"].startswith("2099-01-31T05:00:00")
    assert anna.get(f"jobs/{later['id']}")["state"] == "DEFERRED"
    both = {**call, "run_after_seconds": 1, "run_after": "2099-01-31T06:00:00Z"}
    assert "not both" in anna.post("jobs", both, 422)["detail"]


@pytest.mark.parametrize(
    "name", ["tests.app.exposed.hidden", "tests.app.exposed.add", "os.system", "antigravity", "x"]
)
def test_unexposed_name_gives_404_and_is_not_imported(name: str, anna: Caller) -> None:
    assert anna.post("jobs", {"task": name}, 404)["detail"].startswith("No task is exposed as")
    assert not Job.objects.exists()


def test_exposed_tasks_are_listed_with_parameters(anna: Caller) -> None:
    tasks = {one["name"]: one for one in anna.get("tasks")["tasks"]}
    assert set(tasks) == set(exposed_tasks())
    shown = tasks["numbers.add"]
    assert shown["parameters"] == {"first": "first: int", "second": "second: int = 0"}
    assert shown["description"] == "Add two numbers."
    assert list(tasks["with.context"]["parameters"]) == ["name"]


@pytest.mark.parametrize(
    ("task", "args", "kwargs", "told"),
    [
        ("numbers.add", [], {}, "missing a required argument: 'first'"),
        ("numbers.add", [], {"frst": 1}, "argument: 'first'; unexpected: 'frst'."),
        ("numbers.add", [1, 2, 3], {}, "too many positional arguments"),
        ("numbers.add", [1], {"third": 3}, "unexpected keyword argument 'third'"),
        ("numbers.add", [1], {"first": 3}, "multiple values for argument 'first'"),
        ("numbers.add", ["1"], {}, "args.0: Input should be a valid integer"),
        ("numbers.add", [None], {}, "args.0: Input should be a valid integer"),
        ("numbers.add", [1], {"second": 1.5}, "kwargs.second: Input should be a valid integer"),
        ("tests.app.exposed.note", ["soon"], {"amount": "1"}, "args.0: Input should be a valid d"),
        ("with.context", [], {"context": 1, "name": "x"}, "unexpected keyword argument 'context'"),
        ("with.context", [7], {}, "args.0: Input should be a valid string"),
    ],
)
def test_wrong_arguments_give_422_with_an_explanation(
    task: str, args: list[Any], kwargs: dict[str, Any], told: str, anna: Caller
) -> None:
    problem = anna.post("jobs", {"task": task, "args": args, "kwargs": kwargs}, 422)
    assert told in problem["detail"]
    assert not Job.objects.exists()


def test_values_are_converted_by_annotation(anna: Caller) -> None:
    call = {
        "task": "tests.app.exposed.note",
        "args": ["2030-01-31T06:00:00Z"],
        "kwargs": {"amount": "12.50", "order": str(uuid.UUID(int=7)), "tags": ["a", "b"]},
    }
    made = anna.post("jobs", call, 201)
    work_all()
    seen = anna.get(f"jobs/{made['id']}")
    assert seen["return_value"] == [
        "2030-01-31T06:00:00+00:00",
        "12.50",
        str(uuid.UUID(int=7)),
        ["a", "b"],
    ]


def test_task_without_annotations_takes_any_json(anna: Caller) -> None:
    nested = {"deep": [[[{"": None}]]], "n": 10**30, "text": "\u00fc\U0001f600", "x": 1e300}
    made = anna.post("jobs", {"task": "loose", "args": [nested], "kwargs": {"args": 1}}, 201)
    work_all()
    assert anna.get(f"jobs/{made['id']}")["return_value"] == [[nested], {"args": 1}]


def test_argument_whose_type_is_incomplete_is_not_checked(anna: Caller) -> None:
    call = {"task": "ship", "args": [[[1, 2]]]}
    made = anna.post("jobs", {**call, "kwargs": {"more": 4}}, 201)
    work_all()
    assert anna.get(f"jobs/{made['id']}")["return_value"] == 7
    refused = anna.post("jobs", {**call, "kwargs": {"more": "four"}}, 422)
    assert "kwargs.more: Input should be a valid integer" in refused["detail"]


def test_unknown_queue_gives_422_and_large_package_413(anna: Caller, settings: Any) -> None:
    entry = settings.TASKS["default"]
    settings.TASKS = {
        "default": {
            **entry,
            "QUEUES": ["default"],
            "OPTIONS": {**entry["OPTIONS"], "MAX_PACKAGE_BYTES": 2000},
        }
    }
    call = {"task": "loose", "args": []}
    assert "Queue 'x' is not valid" in anna.post("jobs", {**call, "queue": "x"}, 422)["detail"]
    anna.post("jobs", {**call, "args": ["x" * 3000]}, 413)


# -- uniqueness -----------------------------------------------------------------------------------


def test_same_unique_key_returns_the_first_job(anna: Caller) -> None:
    first = anna.post("jobs", {"task": "once", "args": [1]}, 201)
    second = anna.post("jobs", {"task": "once", "args": [1]}, 200)
    assert (second["id"], second["was_duplicate"]) == (first["id"], True)


def test_same_idempotency_key_of_same_user_returns_the_first_job(
    anna: Caller, who_may: Callable[..., Caller]
) -> None:
    def post(caller: Caller, key: str, status: int) -> str:
        body = {"task": "numbers.add", "args": [1]}
        made = caller.post("jobs", body, status, headers={"Idempotency-Key": key})
        return str(made["id"])

    first = post(anna, "{order} 7", 201)
    assert post(anna, "{order} 7", 200) == first
    work_all()
    assert post(anna, "{order} 7", 200) == first
    assert post(anna, "order 8", 201) != first
    assert post(who_may("stoker.add_job"), "{order} 7", 201) != first
    for key in ("", "x" * 101, "a\x00", "\u00fc"):
        anna.post("jobs", {"task": "loose"}, 422, headers={"Idempotency-Key": key})
    once = {"task": "once", "args": [1]}
    assert "of its own" in anna.post("jobs", once, 422, headers={"Idempotency-Key": "x"})["detail"]


# -- change, cancel -------------------------------------------------------------------------------


def test_cancel_of_waiting_job_records_author_and_reason(anna: Caller) -> None:
    made = anna.post("jobs", {"task": "numbers.add", "args": [1]}, 201)
    done = anna.post(f"jobs/{made['id']}/cancel", {"because": "twice"})
    assert (done["state"], done["reason"]) == ("CANCELLED", "cancelled by anna: twice")
    assert not Ready.objects.exists()
    again = anna.post(f"jobs/{made['id']}/cancel", status=409)
    assert (again["state"], again["detail"]) == (
        "CANCELLED",
        "The job has ended already: CANCELLED.",
    )


def test_rescheduled_job_starts_at_once_without_a_time(anna: Caller) -> None:
    result = add.using(run_after=3600).enqueue(1, 2)
    later = anna.post(f"jobs/{result.id}/reschedule", {"run_after": "2099-01-31T06:00:00Z"})
    assert (later["state"], later["run_after"]) == ("DEFERRED", "2099-01-31T06:00:00Z")
    assert anna.post(f"jobs/{result.id}/reschedule", {})["state"] == "READY"


def test_unknown_job_gives_404(anna: Caller) -> None:
    nowhere = uuid.uuid4()
    assert "There is no job" in anna.call("GET", f"jobs/{nowhere}").json()["detail"]
    anna.post(f"jobs/{nowhere}/cancel", status=404)
    assert anna.call("GET", "jobs/not-an-id").status_code == 422
    assert anna.call("GET", f"jobs/{nowhere}?backend=nowhere").status_code == 404


def test_why_explains_a_waiting_and_an_ended_job(anna: Caller) -> None:
    result = add.enqueue(40, 2)
    answer = anna.get(f"jobs/{result.id}/why")
    assert (answer["kind"], answer["needs_somebody"]) == ("no_cluster", True)
    assert answer["advice"]
    assert answer["facts"] == {"silent": []}
    work_all()
    answer = anna.get(f"jobs/{result.id}/why")
    assert (answer["kind"], answer["facts"]["attempts"]) == ("successful", 1)
    assert anna.call("GET", f"jobs/{uuid.uuid4()}/why").status_code == 404


# -- lists ----------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_list_searches_arguments_page_by_page(anna: Caller) -> None:
    jobs = [payments.pay.enqueue(number, payments.IBAN) for number in range(5)]
    payments.plain.enqueue(1, note="alice")
    ids = [job.id for job in reversed(jobs)]
    page = anna.get("jobs", q="payments.pay", limit=2)
    found = [one["id"] for one in page["jobs"]]
    while page["next"]:
        page = anna.get("jobs", q="payments.pay", limit=2, after=page["next"])
        found += [one["id"] for one in page["jobs"]]
    assert found == ids
    (one,) = anna.get("jobs", q="order_id=3")["jobs"]
    assert (one["id"], one["state"], one["label"]) == (jobs[3].id, "READY", "order 3")
    assert anna.get("jobs", q=payments.IBAN)["jobs"] == []
    assert anna.get("jobs", q=jobs[2].id)["jobs"][0]["id"] == jobs[2].id
    assert len(anna.get("jobs", task=payments.plain.module_path, state="READY")["jobs"]) == 1
    assert anna.get("jobs", until="2020-01-01T00:00:00Z")["jobs"] == []
    assert anna.call("GET", "jobs?state=odd").status_code == 422
    other = anna.get("jobs", limit=2)["next"]
    assert anna.call("GET", f"jobs?state=DEFERRED&after={other}").status_code == 422


def test_waits_of_an_ended_job_are_shown_by_cause(anna: Caller) -> None:
    result = add.using(run_after=timedelta(seconds=100)).enqueue(1, second=2)
    earlier = timedelta(seconds=300)
    Job.objects.update(enqueued_at=F("enqueued_at") - earlier, run_after=F("run_after") - earlier)
    Deferred.objects.update(due_us=0)
    work_all()
    waits = anna.get(f"jobs/{result.id}")["waits"]
    assert waits["is_complete"]
    causes = {one["cause"]: (one["name"], one["times"]) for one in waits["causes"]}
    assert causes == {"queue": ("", 1), "start_time": ("", 1)}
    seconds = {one["cause"]: one["seconds"] for one in waits["causes"]}
    assert seconds["start_time"] == pytest.approx(100, abs=0.1)
    assert sum(seconds.values()) == pytest.approx(waits["seconds"])
    facts = anna.get(f"jobs/{result.id}/why")["facts"]
    assert facts["waits"] == waits
    assert "1 min 40 s until its start time" in facts["waited"]
