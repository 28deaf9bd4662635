"""Arguments of waiting jobs and dead letters are edited in forms of the dashboard."""

import json
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from django.test import Client

from stoker import chain
from stoker.conf import settings_for
from stoker.jobs.package import sealer_for
from stoker.models import BulkItem, BulkOperation, DeadLetter, Job
from stoker.operations import details
from stoker.testing import drain

from tests.app import frail, payments, tasks
from tests.dashboard.conftest import PREFIX

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgres]
SECRET = "sk_live_4eC39HqLyjWDarj"


def test_arguments_of_a_waiting_job_are_edited_and_the_edit_is_undone(anna: Client) -> None:
    job = tasks.add.enqueue(1, 2)
    page = f"{PREFIX}jobs/{job.id}/edit/"
    assert page in anna.get(f"{PREFIX}jobs/{job.id}/").content.decode()
    assert json.loads(anna.get(page).context["written"]["args"]) == [1, 2]
    refused = anna.post(page, {"args": "[1]", "kwargs": "{}", "because": "typo"})
    assert "cannot be called with these arguments" in refused.content.decode()
    assert 'value="typo"' in refused.content.decode(), "what was written is kept"
    done = anna.post(page, {"args": "[5, 6]", "kwargs": "{}", "because": "typo"}, follow=True)
    assert done.redirect_chain == [(f"{PREFIX}jobs/{job.id}/", 302)]
    notice = done.context["notice"]
    assert (notice["text"], notice["undo"]) == ("The job has the new arguments.", "edit-job")
    record = BulkOperation.objects.get()
    assert (record.operation, record.by, record.because) == ("edit-job", "anna", "typo")
    anna.post(f"{PREFIX}jobs/edit/", dict(notice["fields"]))
    drain()
    job.refresh()
    assert job.return_value == 3


def test_form_that_another_user_overtook_is_refused_once(anna: Client) -> None:
    job: Any = payments.plain.enqueue(1, note="old")
    page = f"{PREFIX}jobs/{job.id}/edit/"
    seen = anna.get(page).context["seen"]
    assert f'name="seen" value="{seen}"' in anna.get(page).content.decode()
    anna.post(page, {"args": "[2]", "kwargs": '{"note": "old"}', "seen": seen})
    fields = {"args": "[1]", "kwargs": '{"note": "new"}'}
    refused = anna.post(page, {**fields, "seen": seen})
    assert "changed after this form was opened" in refused.content.decode()
    assert json.loads(refused.context["written"]["kwargs"]) == {"note": "new"}
    job = payments.plain.get_result(job.id)
    assert (job.args, job.kwargs) == ([2], {"note": "old"})
    anna.post(page, {**fields, "seen": refused.context["seen"]})
    job = payments.plain.get_result(job.id)
    assert (job.args, job.kwargs) == ([1], {"note": "new"})


def test_undo_of_an_edit_refuses_to_overwrite_a_newer_edit(anna: Client) -> None:
    job = tasks.add.enqueue(1, 2)
    page = f"{PREFIX}jobs/{job.id}/edit/"
    notices = [
        anna.post(page, {"args": args, "kwargs": "{}"}, follow=True).context["notice"]
        for args in ("[5, 6]", "[7, 8]")
    ]
    anna.post(f"{PREFIX}jobs/move/", {"job": job.id, "queue": "slow"})
    answers = []
    for notice in (*notices, notices[1]):
        page = anna.post(f"{PREFIX}jobs/edit/", dict(notice["fields"]), follow=True)
        answers.append((page.context["notice"]["text"], tasks.add.get_result(job.id).args))
    refusal = "Nothing was undone: its arguments changed after the operation that you want to undo."
    assert answers == [
        (refusal, [7, 8]),
        ("1 of 1 jobs put back.", [5, 6]),
        ("This bulk operation cannot be undone, or was undone already.", [5, 6]),
    ]


def test_job_that_has_ended_is_not_edited(anna: Client) -> None:
    job = tasks.add.enqueue(1, 2)
    drain()
    page = anna.post(f"{PREFIX}jobs/{job.id}/edit/", {"args": "[5, 6]", "kwargs": "{}"})
    assert "is not waiting" in page.content.decode()
    assert not BulkOperation.objects.exists()


def test_hidden_arguments_stay_as_they_are(anna: Client, who_may: Callable[..., Client]) -> None:
    job = payments.pay.enqueue(7, payments.IBAN, more="old")
    other = who_may("view_job", "change_job")
    page = f"{PREFIX}jobs/{job.id}/edit/"
    text = other.get(page).content.decode()
    assert payments.IBAN not in text
    assert "[withheld]" in text
    other.post(page, {"args": '[8, "[withheld]"]', "kwargs": '{"more": "new"}'})
    edited = payments.pay.get_result(job.id)
    assert (edited.args, edited.kwargs) == ([8, payments.IBAN], {"more": "new"})
    assert payments.IBAN in anna.get(page).content.decode()
    record = BulkItem.objects.get()
    assert payments.IBAN not in anna.get(f"{PREFIX}bulk/{record.bulk_id}/").content.decode()


def test_hidden_argument_of_a_wrong_type_is_not_in_the_refusal(
    who_may: Callable[..., Client],
) -> None:
    job = payments.call_provider.enqueue(471147114711)
    page = f"{PREFIX}jobs/{job.id}/edit/"
    text = who_may("view_job", "change_job").post(page, {"args": '["[withheld]"]', "kwargs": ""})
    assert "api_key: this is not of type str" in text.content.decode()
    assert "471147114711" not in text.content.decode()


def test_edit_that_changes_only_spaces_is_applied(anna: Client) -> None:
    job = payments.plain.enqueue(1, note="a b")
    page = f"{PREFIX}jobs/{job.id}/edit/"
    anna.post(page, {"args": "[1]", "kwargs": '{"note": "a  b"}'})
    assert notes_of([job.id]) == {"a  b"}


def test_unchanged_form_changes_nothing(anna: Client) -> None:
    job = payments.plain.enqueue(1, note="a")
    page = f"{PREFIX}jobs/{job.id}/edit/"
    written = anna.get(page).context["written"]
    sent = {name: text.replace("\n", "\r\n") for name, text in written.items()}  # as browsers do
    assert "No new arguments are given." in anna.post(page, sent).content.decode()
    assert not BulkOperation.objects.exists()


def test_arguments_that_cannot_be_read_are_replaced_as_a_whole(
    anna: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = tasks.add.enqueue(1, 2)
    monkeypatch.setattr("stoker.operations.arguments._opened", lambda *_: None)
    page = f"{PREFIX}jobs/{job.id}/edit/"
    assert "write all arguments" in anna.get(page).content.decode()
    anna.post(page, {"args": "", "kwargs": '{"first": 5, "second": 6}'})
    edited = tasks.add.get_result(job.id)
    assert (edited.args, edited.kwargs) == ([], {"first": 5, "second": 6})


def test_form_needs_the_permission_to_see_the_job(who_may: Callable[..., Client]) -> None:
    job = tasks.add.enqueue(1, 2)
    page = f"{PREFIX}jobs/{job.id}/edit/"
    assert who_may("change_job").get(page).status_code == 403
    assert who_may("view_job").get(page).status_code == 403
    assert who_may("change_job", "view_job").get(page).status_code == 200


def test_dead_letter_is_requeued_with_other_arguments(anna: Client) -> None:
    frail.broken.add("x")
    frail.charge.enqueue("x", note="first")
    drain()
    letter = DeadLetter.objects.get()
    page = f"{PREFIX}dead-letters/{letter.pk}/edit/"
    assert page in anna.get(f"{PREFIX}dead-letters/{letter.pk}/").content.decode()
    done = anna.post(page, {"args": '["y"]', "kwargs": '{"note": "second"}'}, follow=True)
    assert "Requeued as job" in done.context["notice"]["text"]
    letter.refresh_from_db()
    result = frail.charge.get_result(str(letter.successor_id))
    assert (result.args, result.kwargs) == (["y"], {"note": "second"})
    anna.post(f"{PREFIX}dead-letters/undo/", dict(done.context["notice"]["fields"]))
    letter.refresh_from_db()
    assert letter.state == "open"


def test_waiting_jobs_that_match_are_edited_and_put_back(anna: Client) -> None:
    jobs = [payments.plain.enqueue(number, note="alice").id for number in range(3)]
    query = {"q": "note=alice", "arguments": '{"note": "was {note}"}'}
    text = anna.get(f"{PREFIX}bulk/new/", query).content.decode()
    assert "note=&#x27;was alice&#x27;" in text
    assert "Edit arguments" in text
    fields = {**query, "operation": "edit-job"}
    page = anna.post(f"{PREFIX}bulk/start/", fields, follow=True)
    assert "3 of 3 jobs given other arguments." in page.content.decode()
    assert notes_of(jobs) == {"was alice"}
    anna.post(f"{PREFIX}bulk/undo/", {"bulk": str(page.context["row"].pk)})
    assert notes_of(jobs) == {"alice"}


def test_undo_of_many_edits_keeps_the_types_of_equal_arguments(anna: Client) -> None:
    jobs = [payments.plain.enqueue(one, note="alice").id for one in (1, True)]
    fields = {"q": "note=alice", "arguments": '{"note": "x"}', "operation": "edit-job"}
    page = anna.post(f"{PREFIX}bulk/start/", fields, follow=True)
    anna.post(f"{PREFIX}bulk/undo/", {"bulk": str(page.context["row"].pk)})
    assert [str(payments.plain.get_result(job).args) for job in jobs] == ["[1]", "[True]"]


def notes_of(jobs: list[str]) -> set[str]:
    return {payments.plain.get_result(job).kwargs["note"] for job in jobs}


@pytest.mark.parametrize(
    "arguments", ["", "[1]", "{", '{"api_key": "new"}', '{"first": [{"token": 1}]}']
)
def test_impossible_edits_in_bulk_are_refused(arguments: str, anna: Client) -> None:
    tasks.add.enqueue(1, 2)
    fields = {"operation": "edit-job", "arguments": arguments}
    assert anna.post(f"{PREFIX}bulk/start/", fields).status_code == 400
    assert not BulkOperation.objects.exists()


def test_edit_of_large_arguments_is_not_undone(
    anna: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.operations.waiting_jobs.LARGEST_IN_LISTS_BYTES", 10)
    assert details.LARGEST_IN_LISTS_BYTES > 10
    job = tasks.add.enqueue(1, 2)
    page = f"{PREFIX}jobs/{job.id}/edit/"
    done = anna.post(page, {"args": "[5, 6]", "kwargs": "{}"}, follow=True)
    assert done.context["notice"]["undo"] == ""
    assert Job.objects.get().pk == UUID(job.id)


@pytest.mark.parametrize(
    ("step", "given", "wrong", "problem"),
    [
        (payments.pay.s("wrong"), ["right"], ["right", "more"], "too many positional arguments"),
        (payments.pay.starmap([(-1, "wrong")]), [[[1, "right"]]], [7], "which has the calls"),
        (payments.pay.starmap([(-1, "wrong")]), [[[1, "right"]]], [[7]], "which has the calls"),
        (payments.pay.starmap([(-1, "wrong")]), [[[1, "right"]]], [[[1]]], "missing a required"),
    ],
)
def test_step_of_a_workflow_is_requeued_with_other_arguments(
    step: Any, given: Any, wrong: Any, problem: str, anna: Client
) -> None:
    """This includes a step that receives a result, and one that makes the calls of a map."""
    flow = chain(tasks.echo.si(-1), step).enqueue()
    drain()
    letter = DeadLetter.objects.get()
    address = f"{PREFIX}dead-letters/{letter.pk}/edit/"
    page = anna.post(address, {"args": json.dumps(wrong), "kwargs": "{}"}).content.decode()
    assert problem in page
    assert "the result of the step before" in page or "the calls of a map" in page
    response = anna.post(address, {"args": json.dumps(given), "kwargs": "{}"})
    assert response.status_code == 302, response.content
    job = Job.objects.get(pk=DeadLetter.objects.get().successor_id)
    package = sealer_for(settings_for()).open(bytes(job.package))
    assert "right" in str(package.args)
    drain()
    flow.refresh()
    # The result of the step before is -1, with which the task fails again.
    assert flow.status == ("FAILED" if package.options.receives else "SUCCESSFUL")
