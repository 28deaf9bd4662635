"""Workflows over HTTP."""

import uuid

import pytest

from stoker import chain
from stoker.testing import drain

from tests.api.conftest import Caller
from tests.workflows.tasks import FAILING, note

pytestmark = pytest.mark.django_db(transaction=True)


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
    assert anna.call("GET", "workflows?state=x").status_code == 422
    assert anna.call("GET", f"workflows?after={ids[0]}").status_code == 422


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
