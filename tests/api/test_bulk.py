"""Operations on many over HTTP."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from stoker.conf import settings_for
from stoker.models import BulkOperation, Deferred, Job, Ready
from stoker.operations.bulk_walk import go_on

from tests.api.conftest import Caller
from tests.app import payments

pytestmark = pytest.mark.django_db(transaction=True)


def walk() -> None:
    go_on(settings_for(), 60)


def test_operation_is_counted_started_paused_and_undone(anna: Caller) -> None:
    for number in range(3):
        payments.plain.enqueue(number, note="alice")
    payments.plain.enqueue(7)
    body = {"operation": "move-job", "queue": "slow", "filters": {"q": "alice"}}
    counted = anna.post("bulk", {**body, "dry_run": True})
    assert (counted["matched"], counted["is_counted"]) == (3, True)
    assert not BulkOperation.objects.exists()
    row = anna.post("bulk", {**body, "because": "lunch"}, status=201)
    assert (row["state"], row["by"], row["because"]) == ("running", "anna", "lunch")
    address = f"bulk/{row['id']}"
    assert anna.post(f"{address}/pause")["state"] == "paused"
    walk()
    assert not Job.objects.filter(queue="slow").exists()
    assert anna.post(f"{address}/pause", status=409)["detail"]
    assert anna.post(f"{address}/resume")["state"] == "running"
    walk()
    row = anna.get(address)
    assert (row["state"], row["done"], row["refused"]) == ("done", 3, 0)
    assert anna.post(f"{address}/stop", status=409)["detail"]
    undo = anna.post(f"{address}/undo")
    assert undo["undoes"] == row["id"]
    walk()
    assert anna.get(f"bulk/{undo['id']}")["done"] == 3
    assert set(Ready.objects.values_list("queue", flat=True)) == {"default"}
    page = anna.get("bulk", limit=1)
    assert [one["id"] for one in page["operations"]] == [undo["id"]]
    page = anna.get("bulk", limit=1, after=page["next"])
    assert ([one["id"] for one in page["operations"]], page["is_cut"]) == ([row["id"]], False)


def test_targets_can_be_named(anna: Caller) -> None:
    jobs = [payments.plain.enqueue(number).id for number in range(3)]
    anna.post("bulk", {"operation": "hold-job", "ids": jobs[:2]}, status=201)
    walk()
    assert {str(pk) for pk in Deferred.objects.values_list("pk", flat=True)} == set(jobs[:2])


@pytest.mark.parametrize(
    "body",
    [
        {"operation": "hold-job"},
        {"operation": "odd", "all": True},
        {"operation": "move-job", "all": True},
        {"operation": "reschedule-job", "all": True},
        {"operation": "hold-job", "filters": {"colour": "red"}},
        {"operation": "hold-job", "filters": {"state": "FAILED"}},
        {"operation": "discard-letter", "filters": {"reason": "odd"}},
        {"operation": "cancel-job", "filters": {"fingerprint": "5f0c1e"}},
        {"operation": "discard-letter", "filters": {"state": "READY"}},
        {"operation": "cancel-job", "filters": {"q": " "}},
    ],
)
def test_impossible_operation_is_refused(body: Any, anna: Caller) -> None:
    payments.plain.enqueue(1)
    anna.post("bulk", body, status=422)
    assert not BulkOperation.objects.exists()


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize(
    "more",
    [
        {"ids": []},
        {"ids": [], "all": True},
        {"ids": [], "filters": {"queue": "default"}},
        {"ids": ["01a1ffdb-f411-7482-86ed-55b43acb2507"], "filters": {"queue": "default"}},
        {"ids": ["01a1ffdb-f411-7482-86ed-55b43acb2507"], "all": True},
    ],
)
def test_empty_ids_and_ids_with_filters_are_refused(more: Any, dry_run: bool, anna: Caller) -> None:
    """A program whose list of ids is empty must not change all jobs."""
    payments.plain.enqueue(1)
    body = {"operation": "hold-job", "dry_run": dry_run, **more}
    assert anna.post("bulk", body, status=422)["detail"] == (
        "ids: give at least one, and leave out filters and all."
    )
    assert not BulkOperation.objects.exists()


def test_bulk_operation_needs_its_own_and_the_operations_permission(
    anna: Caller, who_may: Callable[..., Caller]
) -> None:
    payments.plain.enqueue(1)
    body = {"operation": "hold-job", "all": True}
    row = anna.post("bulk", body, status=201)
    for permissions in (["view_bulkoperation"], ["change_job"]):
        caller = who_may(*permissions)
        caller.post("bulk", body, status=403)
        caller.post(f"bulk/{row['id']}/stop", status=403)
    caller = who_may("view_bulkoperation", "change_job")
    caller.post(f"bulk/{row['id']}/stop")
    assert anna.call("GET", f"bulk/{UUID(int=1)}").status_code == 404


@pytest.mark.parametrize(
    ("operation", "change", "view"),
    [
        ("hold-job", "change_job", "view_job"),
        ("discard-letter", "discard_deadletter", "view_deadletter"),
    ],
)
@pytest.mark.parametrize("dry_run", [True, False])
def test_text_as_filter_needs_permission_to_see_the_targets(
    operation: str, change: str, view: str, dry_run: bool, who_may: Callable[..., Caller]
) -> None:
    """The number of targets says whether the text is in an argument or a traceback."""
    body = {"operation": operation, "dry_run": dry_run}
    by_text, status = {**body, "filters": {"q": "alice"}}, 200 if dry_run else 201
    blind = who_may("view_bulkoperation", change)
    assert view in blind.post("bulk", by_text, status=403)["detail"]
    blind.post("bulk", {**body, "filters": {"queue": "default"}}, status=status)
    who_may("view_bulkoperation", change, view).post("bulk", by_text, status=status)
