"""Dead letters over HTTP: list, details, requeue, discard, purge."""

import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from stoker.conf import settings_for
from stoker.jobs.package import sealer_for
from stoker.models import BulkOperation, DeadLetter, Job, Ready, Requeue

from tests.api.conftest import Caller
from tests.app import frail
from tests.integration.letters import dead
from tests.integration.work import claim, work_off

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _clear_broken() -> Iterator[None]:
    frail.broken.clear()
    yield
    frail.broken.clear()


def work_all() -> None:
    while work_off():
        pass


def test_detail_has_arguments_error_and_history(anna: Caller) -> None:
    letter = dead(frail.fetch, "news", note="x")
    for name in (letter.pk, letter.job_id):
        story = anna.get(f"dead-letters/{name}")
        assert story["letter"]["id"] == str(letter.pk)
    assert (story["args"], story["kwargs"]) == (["news"], {"note": "x"})
    assert story["letter"]["key"] == letter.key
    assert "news is broken" in story["traceback"]
    (attempt,) = story["attempts"]
    assert attempt["exception_class"].endswith("Broken")
    assert story["requeues"] == []


def test_pages_cover_all_dead_letters_without_overlap(anna: Caller) -> None:
    letters = [dead(frail.charge, f"order {number}") for number in range(7)]
    DeadLetter.objects.update(failed_at=timezone.now())  # all at the same time
    seen, after = [], None
    while True:
        query: dict[str, Any] = {"limit": 3} | ({"after": after} if after else {})
        page = anna.get("dead-letters", **query)
        seen += [one["id"] for one in page["letters"]]
        after = page["next"]
        if after is None:
            break
        assert "order" not in after
        assert "~" not in after
    assert sorted(seen) == sorted(str(one.pk) for one in letters)
    assert len(set(seen)) == 7


@pytest.mark.parametrize(
    "cursor", ["x", "", "fn4", "2030-01-01T00:00:00+00:00~x", "\u00fc", "a" * 600]
)
def test_invalid_cursor_is_refused(cursor: str, anna: Caller) -> None:
    response = anna.client.get("/stoker/dead-letters", {"after": cursor})
    assert response.status_code == 422, response.content


def test_each_filter_finds_the_matching_dead_letters(anna: Caller) -> None:
    charge, fetch = dead(frail.charge, "order 1"), dead(frail.fetch, "news")
    long_ago = timezone.now() - timedelta(days=9)
    DeadLetter.objects.filter(pk=charge.pk).update(failed_at=long_ago, queue="bank")
    for filters in (
        {"task": charge.task},
        {"queue": "bank"},
        {"failed_before": (timezone.now() - timedelta(days=1)).isoformat()},
        {"text": "ORDER 1"},
        {"reason": "error", "queue": "bank", "state": "open"},
    ):
        page = anna.get("dead-letters", **filters)
        assert [one["id"] for one in page["letters"]] == [str(charge.pk)], filters
    for filters in (
        {"key": "feed:"},
        {"fingerprint": fetch.fingerprint, "task": fetch.task},
        {"failed_after": "2020-01-01T00:00:00Z", "key": "feed:news"},
    ):
        page = anna.get("dead-letters", **filters)
        assert [one["id"] for one in page["letters"]] == [str(fetch.pk)], filters
    assert anna.get("dead-letters", state="closed")["letters"] == []


def test_stats_count_by_fault(anna: Caller) -> None:
    for number in range(3):
        dead(frail.charge, f"order {number}")
    dead(frail.fetch, "news")
    stats = anna.get("dead-letters/stats", groups=1)
    assert (stats["total"], stats["tasks"], stats["failures"]) == (4, 2, 4)
    (fault,) = stats["faults"]
    assert (fault["number"], fault["task"]) == (3, frail.charge.module_path)


# -- one dead letter ------------------------------------------------------------------------------


def test_requeue_with_new_arguments_records_author_and_reason(anna: Caller) -> None:
    letter = dead(frail.charge, "order 1")
    path = f"dead-letters/{letter.pk}/requeue"
    answer = anna.post(
        path,
        {
            "because": "the bank is back",
            "args": ["order 2"],
            "kwargs": {"note": "x"},
            "queue": "slow",
        },
    )
    assert (answer["fate"], answer["dead_letter_id"]) == ("requeued", str(letter.pk))
    job = anna.get(f"jobs/{answer['job_id']}")
    assert (job["args"], job["kwargs"], job["queue"]) == (["order 2"], {"note": "x"}, "slow")
    again = anna.post(path, {}, 409)
    assert (again["fate"], again["job_id"]) == ("under_way", answer["job_id"])
    work_all()
    closed = anna.post(path, status=409)
    assert (closed["fate"], closed["detail"]) == ("closed", "Nothing was done: it is resolved.")
    (requeue,) = anna.get(f"dead-letters/{letter.pk}")["requeues"]
    assert (requeue["by"], requeue["because"]) == ("anna", "the bank is back")


def test_requeue_with_run_after_defers_the_job(anna: Caller) -> None:
    letter = dead(frail.charge, "order 1")
    answer = anna.post(f"dead-letters/{letter.pk}/requeue", {"run_after_seconds": 60})
    assert anna.get(f"jobs/{answer['job_id']}")["state"] == "DEFERRED"


def test_requeue_with_current_options(anna: Caller) -> None:
    letter = dead(frail.charge.using(timeout=7), "order 1")
    answer = anna.post(f"dead-letters/{letter.pk}/requeue", {"current_options": True})
    package = sealer_for(settings_for()).open(bytes(Job.objects.get(pk=answer["job_id"]).package))
    assert package.options.timeout_seconds is None
    assert anna.post("dead-letters/requeue", {"all": True, "current_options": True})["done"] == 0


def test_requeue_with_newer_job_of_same_key_gives_409(anna: Caller) -> None:
    letter = dead(frail.fetch, "news")
    newer = frail.fetch.enqueue("news", note="newer")
    answer = anna.post(f"dead-letters/{letter.pk}/requeue", status=409)
    assert answer["job_id"] == newer.id


def test_requeue_with_wrong_arguments_gives_422(anna: Caller) -> None:
    letter = dead(frail.charge, "order 1")
    path = f"dead-letters/{letter.pk}/requeue"
    assert anna.post(path, {"args": [1, 2, 3]}, 422)["fate"] == "refused"
    assert Requeue.objects.count() == Ready.objects.count() == 0


def test_discard_records_author_and_reason(anna: Caller) -> None:
    letter = dead(frail.charge, "order 1")
    path = f"dead-letters/{letter.pk}/discard"
    assert anna.post(path, {"because": "known"})["fate"] == "discarded"
    stored = DeadLetter.objects.get()
    assert (stored.state, stored.closed_by, stored.closed_because) == ("discarded", "anna", "known")
    assert anna.post(path, status=409)["detail"] == "Nothing was done: it is discarded."


def test_discard_of_requeued_dead_letter_gives_409(anna: Caller) -> None:
    letter = dead(frail.charge, "order 1")
    answer = anna.post(f"dead-letters/{letter.pk}/requeue")
    refused = anna.post(f"dead-letters/{letter.pk}/discard", status=409)
    assert (refused["fate"], refused["job_id"]) == ("under_way", answer["job_id"])


def test_unknown_id_gives_404(anna: Caller) -> None:
    nowhere = f"dead-letters/{uuid.uuid4()}"
    assert anna.call("GET", nowhere).status_code == 404
    anna.post(f"{nowhere}/requeue", status=404)
    anna.post(f"{nowhere}/discard", status=404)


# -- bulk actions ---------------------------------------------------------------------------------


def test_bulk_requeue_applies_filters_limit_and_dry_run(anna: Caller) -> None:
    for number in range(5):
        dead(frail.charge, f"order {number}")
    dead(frail.fetch, "news")
    wish = {"filters": {"task": frail.charge.module_path}, "limit": 3, "because": "mended"}
    rehearsal = anna.post("dead-letters/requeue", {**wish, "dry_run": True})
    assert (rehearsal["matched"], rehearsal["done"], Ready.objects.count()) == (3, 0, 0)
    done = anna.post("dead-letters/requeue", {**wish, "pause_seconds": 0.001})
    assert (done["matched"], done["done"], done["others"]) == (3, 3, [])
    assert anna.post("dead-letters/requeue", wish)["done"] == 2
    assert Ready.objects.count() == 5
    assert set(Requeue.objects.values_list("by", "because")) == {("anna", "mended")}


def test_bulk_requeue_lists_what_was_not_requeued(anna: Caller) -> None:
    letter = dead(frail.fetch, "news")
    newer = frail.fetch.enqueue("news")
    done = anna.post("dead-letters/requeue", {"all": True})
    (other,) = done["others"]
    assert (done["matched"], done["done"]) == (1, 0)
    assert (other["dead_letter_id"], other["job_id"]) == (str(letter.pk), newer.id)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("dead-letters/purge", {"older_than_seconds": 1}),
        ("dead-letters/requeue", {"all": True}),
        ("dead-letters/discard", {"all": True}),
        ("queues/default/clear", {}),
    ],
)
def test_call_without_limit_changes_at_most_max_bulk(
    path: str, body: Any, anna: Caller, settings: Any
) -> None:
    settings.STOKER_API = {"MAX_BULK": 5}
    anna.post(path, {**body, "dry_run": True})
    anna.post(path, {**body, "dry_run": True, "limit": 6}, status=422)


@pytest.mark.parametrize("filters", [{"text": "alice"}, {"key": "alice"}])
@pytest.mark.parametrize("verb", ["requeue", "discard"])
def test_text_as_filter_needs_permission_to_see_dead_letters(
    verb: str, filters: Any, who_may: Callable[..., Caller]
) -> None:
    """The number of matches says whether the text is in a traceback or a key."""
    permission, body = f"{verb}_deadletter", {"filters": filters, "dry_run": True}
    blind = who_may(permission)
    assert "view_deadletter" in blind.post(f"dead-letters/{verb}", body, status=403)["detail"]
    blind.post(f"dead-letters/{verb}", {**body, "filters": {"reason": "error"}})
    who_may(permission, "view_deadletter").post(f"dead-letters/{verb}", body)


def test_bulk_discard_and_purge_apply_limit_and_dry_run(anna: Caller) -> None:
    for number in range(3):
        dead(frail.charge, f"order {number}")
    anna.post("dead-letters/discard", {"limit": 2, "because": "known"}, status=422)
    some = {"limit": 2, "because": "known", "all": True}
    assert anna.post("dead-letters/discard", some)["done"] == 2
    assert set(DeadLetter.objects.values_list("state", "closed_by")) == {
        ("discarded", "anna"),
        ("open", ""),
    }
    purge = {"older_than_seconds": 0, "state": "all"}
    rehearsal = anna.post("dead-letters/purge", {**purge, "dry_run": True})
    assert (rehearsal["matched"], rehearsal["done"]) == (3, 0)
    asked = {**purge, "limit": 2, "because": "a test"}
    assert anna.post("dead-letters/purge", asked)["done"] == 2
    assert DeadLetter.objects.count() == 1
    row = BulkOperation.objects.get(operation="purge-letter")
    assert (row.by, row.because, row.done) == ("anna", "a test", 2)
    assert row.filters == {"target": "state=all, older than 0 ms"}


@pytest.mark.parametrize(
    ("path", "wish", "told"),
    [
        ("requeue", {"limit": 1001}, "at most 1000"),
        ("discard", {"limit": 1001}, "at most 1000"),
        ("purge", {"limit": 1001, "older_than_seconds": 1}, "at most 1000"),
        ("requeue", {"all": True, "limit": 1000, "pause_seconds": 1}, "longer than 30 seconds"),
        ("discard", {"because": "known"}, "give at least one"),
        ("requeue", {"filters": {"taks": "x"}}, "Extra inputs"),
        ("requeue", {"dry_run": "yes"}, "valid boolean"),
        ("requeue", {"limit": "1"}, "valid integer"),
        ("discard", {"dryrun": True}, "Extra inputs"),
        ("purge", {}, "Field required"),
        ("purge", {"older_than_seconds": 1, "state": "requeued"}, "Input should be"),
    ],
)
def test_incomplete_or_unbounded_bulk_action_gives_422(
    path: str, wish: dict[str, Any], told: str, anna: Caller
) -> None:
    letter = dead(frail.charge, "order 1")
    problem = anna.post(f"dead-letters/{path}", wish, 422)
    assert told in problem["detail"]
    assert DeadLetter.objects.get().state == letter.state


def test_requeue_can_be_undone_until_the_job_starts(anna: Caller) -> None:
    letter = dead(frail.charge, "order 1")
    sent = anna.post(f"dead-letters/{letter.pk}/requeue")
    answer = anna.post(f"dead-letters/{letter.pk}/undo-requeue", {"because": "a mistake"})
    assert (answer["fate"], answer["job_id"]) == ("taken_back", sent["job_id"])
    assert not Ready.objects.exists()
    refused = anna.post(f"dead-letters/{letter.pk}/undo-requeue", status=409)
    assert refused["fate"] == "not_requeued"
    anna.post(f"dead-letters/{letter.pk}/requeue")
    claim()
    refused = anna.post(f"dead-letters/{letter.pk}/undo-requeue", status=409)
    assert "has begun" in refused["detail"]
