"""Many dead letters are requeued in one transaction, each as if it were alone."""

from uuid import uuid4

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from stoker import dead_letters
from stoker.conf import settings_for
from stoker.dead_letters.requeueing import LetterFate, Wish, requeue_together
from stoker.models import DeadLetter, Job, Need, Ready, Requeue
from stoker.models.dead_letter import DeadLetterQuerySet

from tests.app import frail
from tests.integration.letters import dead
from tests.integration.work import work_off

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("nothing_broken")]


def test_each_dead_letter_has_its_own_answer() -> None:
    plain, other = dead(frail.charge, "order 1"), dead(frail.keep, "thing")
    keyed, newer = dead(frail.fetch, "a"), dead(frail.fetch, "b")
    halting, behind = dead(frail.book, "7", "first"), frail.book.enqueue("7", "second")
    closed, sent = dead(frail.charge, "order 2"), dead(frail.charge, "order 3")
    frail.broken.clear()
    dead_letters.discard(closed.pk)
    assert dead_letters.requeue(sent.pk).fate is LetterFate.REQUEUED
    job = frail.fetch.enqueue("b")
    gone = uuid4()
    ids = [one.pk for one in (plain, closed, other, keyed, newer, halting, sent)] + [gone]
    answers = requeue_together(settings_for(), ids, Wish(by="anna", because="mended"))
    assert [one.dead_letter_id for one in answers] == ids
    assert [one.fate.name for one in answers] == [
        "REQUEUED", "CLOSED", "REQUEUED", "REQUEUED", "NEWER", "REQUEUED", "UNDER_WAY", "GONE",
    ]  # fmt: skip
    assert str(answers[4].job_id) == job.id
    by = Requeue.objects.filter(by="anna", because="mended", kind="person")
    new = {one.job_id for one in answers if one.fate is LetterFate.REQUEUED}
    assert set(by.values_list("pk", flat=True)) == new
    assert set(DeadLetter.objects.filter(last_requeued_by="anna").values_list("pk", flat=True)) == {
        plain.pk, other.pk, keyed.pk, halting.pk,
    }  # fmt: skip
    assert frail.fetch.enqueue("a").was_duplicate, "the new job has the unique key"
    held = Need.objects.get(holds__isnull=False)
    assert held.job_id == answers[5].job_id, "the new job has the place in the sequence"
    while work_off():
        pass
    behind.refresh()
    assert behind.return_value == "second"
    assert Job.objects.filter(status=None).count() == 0


def test_two_dead_letters_whose_calls_got_the_same_key_become_one_job() -> None:
    letters = [dead(frail.fetch, feed) for feed in "ab"]
    wish = Wish(args=["c"])
    answers = requeue_together(settings_for(), [one.pk for one in letters], wish)
    assert [one.fate.name for one in answers] == ["REQUEUED", "NEWER"]
    assert answers[0].job_id == answers[1].job_id
    assert Ready.objects.count() == 1


def test_dead_letter_whose_key_raises_is_refused_and_the_others_are_requeued() -> None:
    letters = [dead(frail.refund, order) for order in ("order 1", "order 2")]
    frail.broken.add("owner of order 1")
    answers = requeue_together(settings_for(), [one.pk for one in letters], Wish())
    assert [one.fate.name for one in answers] == ["REFUSED", "REQUEUED"]
    assert answers[0].because == (
        "Broken: owner of order 1 is broken. Raised by the key of unique, an option of "
        "tests.app.frail.refund, for a job that was to be enqueued."
    )


def test_dead_letter_that_changes_meanwhile_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    letters = [dead(frail.charge, f"order {number}") for number in range(3)]
    really = DeadLetterQuerySet.note_requeues

    def note(rows: DeadLetterQuerySet, *given: object) -> bool:
        monkeypatch.setattr(DeadLetterQuerySet, "note_requeues", really)
        DeadLetter.objects.filter(pk=letters[1].pk).update(state="discarded")
        return really(rows, *given)  # type: ignore[arg-type] # as it is called

    monkeypatch.setattr(DeadLetterQuerySet, "note_requeues", note)
    answers = requeue_together(settings_for(), [one.pk for one in letters], Wish())
    # The change was made in the transaction that was rolled back.
    assert [one.fate.name for one in answers] == ["REQUEUED"] * 3
    assert Ready.objects.count() == Requeue.objects.count() == 3


def test_statements_do_not_grow_with_the_dead_letters() -> None:
    letters = [dead(frail.charge, f"order {number}").pk for number in range(24)]
    counts = []
    for part in (letters[:2], letters[2:]):
        with CaptureQueriesContext(connection) as captured:
            requeue_together(settings_for(), part, Wish())
        counts.append(len(captured))
    # Now and then one is added, for example if a cached answer about the store is asked for anew.
    assert counts[1] <= counts[0] + 2 <= 30
