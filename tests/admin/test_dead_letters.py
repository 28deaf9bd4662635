"""Dead letters in the admin: list, details, requeue, edit and requeue, discard."""

import re
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from stoker import dead_letters
from stoker.conf import settings_for
from stoker.jobs.package import sealer_for
from stoker.models import DeadLetter, Job, Ready, Requeue

from tests.admin.conftest import Visitor
from tests.app import frail, tasks
from tests.integration.letters import dead
from tests.integration.work import claim, work_off


def shown_letters(page: str) -> list[str]:
    return re.findall(r"deadletter/([0-9a-f-]{36})/change/", page)


def test_list_filters_show_the_matching_dead_letters(anna: Visitor) -> None:
    charge, fetch = dead(frail.charge, "order 1"), dead(frail.fetch, "news")
    dead_letters.discard(fetch.pk)
    for query, letter in (
        ({}, charge),
        ({"state": "discarded"}, fetch),
        ({"state": "all", "key": "feed"}, fetch),
        ({"state": "all", "text": "ORDER 1"}, charge),
        ({"task": charge.task}, charge),
        ({"reason": "error", "queue": "default"}, charge),
        ({"fingerprint": charge.fingerprint}, charge),
    ):
        assert shown_letters(anna.get("deadletter/", **query)) == [str(letter.pk)], query
    assert not shown_letters(anna.get("deadletter/", text="nothing like it"))
    assert "state=&#x27;x&#x27;" in anna.get("deadletter/", state="x")
    assert "page of this list" in anna.get("deadletter/", after="x")


@pytest.mark.parametrize("are_together", [False, True], ids=["distinct times", "same time"])
@pytest.mark.parametrize("query", [{}, {"queue": "default"}], ids=["by index", "by scan"])
def test_pages_cover_all_dead_letters_without_overlap(
    anna: Visitor, query: Any, are_together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.admin.dead_letters.PAGE", 2)
    monkeypatch.setattr("stoker.dead_letters.search.LOOKED_AT", 3)
    letters = [dead(frail.charge, f"order {number}") for number in range(7)]
    if are_together:
        DeadLetter.objects.update(failed_at=letters[0].failed_at)
    page = anna.get("deadletter/", **query)
    seen = shown_letters(page)
    while link := re.search(r'href="/admin/stoker/([^"]*)" rel="next"', page):
        page = anna.get(link[1].replace("&amp;", "&"))
        seen += shown_letters(page)
    assert len(seen) == 7
    assert sorted(seen) == sorted(str(one.pk) for one in letters)


def test_faults_page_has_one_line_per_fault(anna: Visitor) -> None:
    letters = [dead(frail.charge, f"order {number}") for number in range(3)]
    dead(frail.fetch, "news")
    page = anna.get("deadletter/faults/")
    assert page.count("?fingerprint=") == 2
    asked = anna.post(
        "deadletter/together/",
        verb="requeue",
        all="1",
        **{"filter-fingerprint": letters[0].fingerprint, "filter-task": letters[0].task},
    )
    assert "Requeue: 3 dead letters" in asked
    assert not Ready.objects.exists(), "the confirmation page changes nothing"


def test_detail_page_shows_all_facts_and_history(anna: Visitor) -> None:
    letter = dead(frail.fetch, "news", note="in a hurry")
    dead_letters.requeue(letter.pk, by="bob", because="once more")
    page = anna.get(f"deadletter/{letter.pk}/change/")
    for text in ("news is broken", "in a hurry", "frail.py", "bob", "once more", "feed:news"):
        assert text in page, text
    assert anna.get(f"deadletter/{letter.job_id}/change/"), "the id of its job works, too"
    assert anna.get("deadletter/nothing/change/", status=404)


def test_tracebacks_fold_frames_of_stoker(anna: Visitor) -> None:
    letter = dead(frail.charge, "order 1")
    for path in (f"deadletter/{letter.pk}/change/", f"job/{letter.job_id}/change/"):
        assert "frames of Stoker</summary>" in anna.get(path), path


def test_requeue_can_be_undone_until_the_job_starts(anna: Visitor) -> None:
    letter = dead(frail.charge, "order 1")
    page = anna.post(f"deadletter/{letter.pk}/requeue/")
    assert "Requeued as job" in page
    assert Requeue.objects.get().by == "anna"
    assert f"/admin/stoker/deadletter/{letter.pk}/undo/" in page
    assert "continues it already" in anna.post(f"deadletter/{letter.pk}/requeue/")
    assert "is undone" in anna.post(f"deadletter/{letter.pk}/undo/")
    assert not Ready.objects.exists()
    anna.post(f"deadletter/{letter.pk}/requeue/")
    claim()
    assert "has begun" in anna.post(f"deadletter/{letter.pk}/undo/")


def test_discard_asks_for_confirmation_first(anna: Visitor) -> None:
    letter = dead(frail.charge, "order 1")
    assert "Discard? The dead letter is closed" in anna.get(f"deadletter/{letter.pk}/discard/")
    anna.post(f"deadletter/{letter.pk}/discard/", because="paid in cash")
    letter.refresh_from_db()
    assert (letter.state, letter.closed_by, letter.closed_because) == (
        "discarded",
        "anna",
        "paid in cash",
    )


# -- edited ---------------------------------------------------------------------------------------


def edited(anna: Visitor, letter: DeadLetter, **fields: str) -> str:
    written = {"args": '["order 1"]', "kwargs": "{}", "queue": "default"}
    return anna.post(f"deadletter/{letter.pk}/edit/", **{**written, **fields})


def test_edited_dead_letter_is_requeued_with_new_arguments(anna: Visitor) -> None:
    letter = dead(frail.charge, "order 1")
    page = anna.get(f"deadletter/{letter.pk}/edit/")
    assert "order 1" in page
    assert "charge(order: str" in page
    told = edited(anna, letter, args='["order 2"]', queue="mail", because="a typing error")
    assert "Requeued as job" in told
    job = Job.objects.get(status=None)
    package = sealer_for(settings_for()).open(bytes(job.package))
    assert (package.args, job.queue) == (("order 2",), "mail")
    assert Requeue.objects.get().because == "a typing error"
    assert work_off() == 1
    letter.refresh_from_db()
    assert letter.state == "resolved"


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"args": "[1"}, "this is not JSON"),
        ({"args": "{}"}, "write a JSON list"),
        ({"kwargs": "[]"}, "write a JSON object"),
        ({"args": "[NaN]"}, "this is not JSON"),
        ({"args": "[]"}, "missing a required argument"),
        ({"args": '["a", "b", "c"]'}, "too many positional arguments"),
        ({"args": "[7]"}, "this is not of type str"),
        ({"kwargs": '{"colour": 1}'}, "unexpected keyword"),
        ({"args": '[{"$datetime": "soon"}]'}, "this is not JSON"),
        ({"queue": "x" * 200}, "queue"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_invalid_arguments_are_refused_and_the_form_keeps_its_text(
    anna: Visitor, fields: dict[str, str], sentence: str
) -> None:
    letter = dead(frail.charge, "order 1")
    page = edited(anna, letter, because="a reason", **fields)
    assert sentence in page
    assert "a reason" in page, "the form keeps what was written"
    letter.refresh_from_db()
    assert (letter.state, Ready.objects.count()) == ("open", 0)


def test_values_beyond_json_can_be_edited(anna: Visitor) -> None:
    letter = dead(frail.keep, "order 1", note=("a", b"b"))
    assert "$tuple" in anna.get(f"deadletter/{letter.pk}/edit/")
    edited(anna, letter, kwargs='{\n "note": {\n  "$tuple": [1, 2]}}')
    job = Job.objects.get(status=None)
    assert sealer_for(settings_for()).open(bytes(job.package)).kwargs == {"note": (1, 2)}


def test_unchanged_arguments_keep_the_sealed_package(anna: Visitor) -> None:
    letter = dead(frail.fetch, "news")
    edited(anna, letter, args='[\n "news"\n]', queue="mail")
    job = Job.objects.get(status=None)
    package = sealer_for(settings_for()).open(bytes(job.package))
    assert (package.args, package.options.identity) == (("news",), letter.identity)


# -- bulk actions ---------------------------------------------------------------------------------


def test_bulk_action_applies_to_ticked_dead_letters_after_confirmation(anna: Visitor) -> None:
    letters = [dead(frail.charge, f"order {number}") for number in range(3)]
    ids = [str(one.pk) for one in letters[:2]]
    asked = anna.post("deadletter/together/", verb="discard", ids=ids)
    assert "Discard: 2 dead letters?" in asked
    assert not DeadLetter.objects.filter(state="discarded").exists()
    told = anna.post("deadletter/together/", verb="discard", ids=ids, confirmed="1", because="x")
    assert "2 of 2 dead letters" in told
    assert DeadLetter.objects.filter(state="discarded", closed_by="anna").count() == 2
    told = anna.post("deadletter/together/", verb="discard", ids=ids, confirmed="1")
    assert "0 of 2 dead letters" in told
    assert "select dead letters" in anna.post("deadletter/together/", verb="discard")
    gone = [str(uuid.uuid4()), ids[0]]
    told = anna.post("deadletter/together/", verb="requeue", ids=gone, confirmed="1")
    assert "there is no such dead letter" in told
    assert "Choose an operation" in anna.post("deadletter/together/", verb="burn", ids=ids)


def test_bulk_action_applies_to_all_filtered_dead_letters(anna: Visitor) -> None:
    [dead(frail.charge, f"order {number}") for number in range(3)]
    other = dead(frail.fetch, "news")
    told = anna.post(
        "deadletter/together/",
        verb="requeue",
        all="1",
        confirmed="1",
        **{"filter-task": "tests.app.frail.charge"},
    )
    assert "3 of 3 dead letters" in told
    other.refresh_from_db()
    assert other.state == "open"
    told = anna.post("deadletter/together/", verb="undo", all="1", confirmed="1")
    assert "select dead letters" in told
    odd = {"all": "1", "filter-reason": "bad luck"}
    assert "bad luck" in anna.post("deadletter/together/", verb="requeue", **odd)
    ids = [str(one.pk) for one in DeadLetter.objects.filter(state="requeued")]
    told = anna.post("deadletter/together/", verb="undo", ids=ids, confirmed="1")
    assert "3 of 3" in told
    assert not Ready.objects.exists()


def test_confirmation_says_that_not_all_dead_letters_were_counted(
    anna: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.dead_letters.search.WALKED", 1)
    for number in range(4):
        dead(frail.charge, f"order {number}")
    chosen: dict[str, Any] = {"verb": "discard", "all": "1"}
    asked = anna.post("deadletter/together/", **{**chosen, "filter-text": "order"})
    assert "Discard: more than 2 dead letters (text order; the oldest first)?" in asked
    chosen["filter-text"] = "order 3"
    asked = anna.post("deadletter/together/", **chosen)
    assert "Discard: an unknown number of dead letters (text order 3; the oldest first)?" in asked
    told = anna.post("deadletter/together/", confirmed="1", **chosen)
    assert "1 of 1 dead letters discarded" in told
    chosen = {"verb": "discard", "all": "1", "filter-task": "no.such.task"}
    assert "select dead letters" in anna.post("deadletter/together/", **chosen)


@pytest.mark.parametrize("name", ["text", "key"])
def test_selection_by_text_needs_permission_to_see_dead_letters(
    name: str, who_may: Callable[..., Visitor]
) -> None:
    """The number of matches says whether the text is in a traceback or a key."""
    dead(frail.fetch, "news")
    chosen: dict[str, Any] = {"verb": "discard", "all": "1", f"filter-{name}": "news"}
    permission = "stoker.discard_deadletter"
    who_may(permission).post("deadletter/together/", status=403, **chosen)
    who_may(permission, "stoker.view_deadletter").post("deadletter/together/", **chosen)


def test_get_requests_change_nothing(anna: Visitor) -> None:
    """Django's templates call every callable that they are given."""
    letter = dead(frail.charge, "order 1")
    tasks.add.enqueue(1, 2)
    before = list(DeadLetter.objects.values())
    for path in ("", "faults/", "together/", f"{letter.pk}/change/", f"{letter.pk}/edit/"):
        anna.client.get(f"/admin/stoker/deadletter/{path}", {"all": "1", "verb": "requeue"})
    assert list(DeadLetter.objects.values()) == before
    assert Ready.objects.count() == 1
