"""Workflows over HTTP."""

import uuid
from collections.abc import Callable

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from stoker import chain, group
from stoker.conf import settings_for
from stoker.models import BulkOperation, Step
from stoker.operations.bulk_walk import go_on
from stoker.testing import drain

from tests.api.conftest import Caller
from tests.workflows.tasks import FAILING, note

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def none_fails() -> None:
    """Forget which steps were to fail in earlier tests of this process."""
    FAILING.clear()


def test_workflows_are_listed_by_state_and_page(anna: Caller) -> None:
    ids = [chain(note.si("a"), note.si("b")).enqueue(name=f"order {n}").id for n in range(3)]
    drain()
    running = chain(note.si("c")).enqueue()
    page = anna.get("workflows?state=SUCCESSFUL&limit=2")
    assert [one["id"] for one in page["workflows"]] == ids[:0:-1]
    assert page["workflows"][0]["progress"]["successful"] == 2
    page = anna.get(f"workflows?state=SUCCESSFUL&limit=2&after={page['next']}")
    assert ([one["name"] for one in page["workflows"]], page["next"]) == (["order 0"], None)
    assert anna.get("workflows")["workflows"][0]["id"] == running.id
    found = anna.get("workflows", q="ORDER 1")
    assert ([one["name"] for one in found["workflows"]], found["is_cut"]) == (["order 1"], False)
    assert anna.call("GET", "workflows?state=x").status_code == 422
    assert anna.call("GET", f"workflows?after={ids[0]}").status_code == 422


def test_page_of_workflows_takes_the_same_number_of_queries_for_any_number(anna: Caller) -> None:
    counts, totals = [], []
    for number in (1, 49):
        for _ in range(number):
            chain(note.si("a"), note.si("b")).enqueue()
        with CaptureQueriesContext(connection) as captured:
            page = anna.get("workflows")
        counts.append(len(captured))
        totals += [one["progress"]["total"] for one in page["workflows"]]
    assert totals == [2] * 51
    assert counts[0] == counts[1]


def test_failed_workflow_is_shown_and_retried(anna: Caller) -> None:
    FAILING.add("a")
    workflow = chain(note.si("a"), note.si("b")).enqueue()
    drain()
    FAILING.clear()
    story = anna.get(f"workflows/{workflow.id}")
    assert (story["workflow"]["state"], story["has_more"]) == ("FAILED", False)
    assert {one["state"] for one in story["steps"]} >= {"FAILED"}
    path = f"workflows/{workflow.id}"
    assert anna.call("POST", f"{path}/retry", {"because": "mended"}).status_code == 200
    drain()
    assert anna.get(path)["workflow"]["state"] == "SUCCESSFUL"
    assert anna.call("POST", f"{path}/retry", {}).status_code == 409
    assert anna.call("POST", f"{path}/cancel", {}).status_code == 409
    other = chain(note.si("c")).enqueue()
    story = anna.call("POST", f"workflows/{other.id}/cancel", {"because": "wrong"}).json()
    assert (story["workflow"]["state"], story["workflow"]["reason"]) == (
        "CANCELLED",
        "cancelled by anna: wrong",
    )
    assert anna.call("GET", f"workflows/{uuid.uuid4()}").status_code == 404


def test_answers_to_operations_hide_what_the_user_may_not_see(
    who_may: Callable[..., Caller],
) -> None:
    FAILING.add("a")
    failed = chain(note.si("a"), note.si("b")).enqueue(name="order of alice")
    drain()
    FAILING.clear()
    waiting = chain(note.si("c")).enqueue(name="order of bob")
    blind, seeing = who_may("change_workflow"), who_may("change_workflow", "view_workflow")
    step = {"step": str(Step.objects.get(workflow_id=failed.id, state="FAILED", kind="task").pk)}
    calls = [
        (f"workflows/{failed.id}/retry", step),
        (f"workflows/{failed.id}/undo-retry", step),
        (f"workflows/{failed.id}/retry", {}),
        (f"workflows/{waiting.id}/cancel", {"because": "ordered twice"}),
    ]
    for path, body in calls:
        shown = blind.post(path, body)
        workflow = shown["workflow"]
        assert (shown["steps"], shown["has_more"]) == ([], False)
        assert (workflow["name"], workflow["reason"]) == ("", "")
        assert workflow["state"] in ("RUNNING", "FAILED", "CANCELLED")
        assert workflow["progress"]["total"] > 0
    other = chain(note.si("c")).enqueue(name="order of bob")
    shown = seeing.post(f"workflows/{other.id}/cancel", {"because": "ordered twice"})
    assert "ordered twice" in shown["workflow"]["reason"]
    assert (shown["workflow"]["name"], len(shown["steps"])) == ("order of bob", 2)


def test_steps_are_paged_failed_first_and_one_is_retried(anna: Caller) -> None:
    FAILING.add("b")
    workflow = group(note.si("a"), note.si("b"), note.si("c")).enqueue()
    drain()
    FAILING.clear()
    path = f"workflows/{workflow.id}"
    page = anna.get(f"{path}/steps?limit=2")
    assert [one["state"] for one in page["steps"]] == ["FAILED", "SUCCESSFUL"]
    assert page["counts"] == {"FAILED": 1, "SUCCESSFUL": 2}
    failed = page["steps"][0]
    assert failed["can_retry"]
    assert failed["dead_letter_id"]
    assert failed["run_seconds"] >= 0
    rest = anna.get(f"{path}/steps?limit=2&after={page['next']}")
    assert (len(rest["steps"]), rest["next"]) == (1, None)
    assert len(anna.get(f"{path}/steps?state=FAILED")["steps"]) == 1
    assert anna.call("GET", f"{path}/steps?state=x").status_code == 422
    assert anna.call("GET", f"{path}/steps?after=x").status_code == 422
    assert anna.call("GET", f"workflows/{uuid.uuid4()}/steps").status_code == 404
    wrong = anna.call("POST", f"{path}/retry", {"step": str(uuid.uuid4())})
    assert wrong.status_code == 409
    assert anna.call("POST", f"{path}/retry", {"step": failed["id"]}).status_code == 200
    drain()
    assert anna.get(path)["workflow"]["state"] == "SUCCESSFUL"


def test_retry_of_a_step_is_undone_until_its_job_begins(anna: Caller) -> None:
    FAILING.add("a")
    workflow = chain(note.si("a"), note.si("b")).enqueue()
    other = chain(note.si("c")).enqueue()
    drain()
    FAILING.clear()
    path = f"workflows/{workflow.id}"
    (failed,) = anna.get(f"{path}/steps?state=FAILED")["steps"]
    body = {"step": failed["id"], "because": "not mended"}
    refused = anna.call("POST", f"{path}/undo-retry", body)
    assert (refused.status_code, "no retry to undo" in refused.json()["detail"]) == (409, True)
    anna.call("POST", f"{path}/retry", {"step": failed["id"]})
    assert anna.call("POST", f"workflows/{other.id}/undo-retry", body).status_code == 409
    assert anna.call("POST", f"workflows/{uuid.uuid4()}/undo-retry", body).status_code == 404
    assert anna.call("POST", f"{path}/undo-retry", {}).status_code == 422
    story = anna.call("POST", f"{path}/undo-retry", body).json()
    assert story["workflow"]["state"] == "FAILED"
    entry = BulkOperation.objects.latest("pk")
    assert (entry.operation, entry.by, entry.because) == ("undo-step", "anna", "not mended")
    anna.call("POST", f"{path}/retry", {"step": failed["id"]})
    (again,) = anna.get(f"{path}/steps?state=ENQUEUED")["steps"]
    assert [(one["job_id"], one["status"]) for one in again["earlier"]] == [
        (failed["job_id"], "FAILED")
    ]
    drain()
    assert anna.call("POST", f"{path}/undo-retry", body).status_code == 409
    assert anna.get(path)["workflow"]["state"] == "SUCCESSFUL"


def test_retry_is_a_bulk_operation_that_can_be_previewed_and_undone(anna: Caller) -> None:
    FAILING.update("ab")
    workflow = group(note.si("a"), note.si("b"), note.si("c")).enqueue()
    drain()
    FAILING.clear()
    wanted = {"operation": "retry-step", "filters": {"workflow": workflow.id}}
    preview = anna.call("POST", "bulk", {**wanted, "dry_run": True})
    assert (preview.status_code, preview.json()["matched"]) == (200, 2)
    story = anna.call("POST", f"workflows/{workflow.id}/retry", {"because": "mended"}).json()
    go_on(settings_for(), 600)  # what the request had no time for
    bulk = anna.get(f"bulk/{story['bulk_id']}")
    assert (bulk["operation"], bulk["state"], bulk["done"]) == ("retry-step", "done", 2)
    assert (bulk["by"], bulk["because"]) == ("anna", "mended")
    assert anna.call("POST", "bulk", wanted).status_code == 422, "it runs"
    anna.call("POST", f"bulk/{story['bulk_id']}/undo", {})
    go_on(settings_for(), 600)
    assert anna.get(f"workflows/{workflow.id}")["workflow"]["state"] == "FAILED"
    assert anna.call("POST", "bulk", wanted).status_code == 201
    (failed,) = anna.get(f"workflows/{workflow.id}/steps?state=FAILED&limit=1")["steps"]
    one = anna.call("POST", f"workflows/{workflow.id}/retry", {"step": failed["id"]}).json()
    assert one["bulk_id"] is None
    unknown = {"operation": "retry-step", "filters": {"workflow": str(uuid.uuid4())}}
    assert anna.call("POST", "bulk", unknown).status_code == 404
