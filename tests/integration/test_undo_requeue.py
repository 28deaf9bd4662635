"""Undo of a requeue: everything is as before, unless the job has started."""

import random
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from stoker import chain, dead_letters
from stoker.brokers.adapters import broker_for
from stoker.conf import settings_for
from stoker.dead_letters import Fate, undoing
from stoker.dead_letters.undoing import take_back_together
from stoker.jobs import outcomes
from stoker.jobs.faults import plain_fault
from stoker.jobs.outcomes import Attempted
from stoker.jobs.record import finish
from stoker.jobs.states import JobState
from stoker.models import (
    Attempt,
    DeadLetter,
    Job,
    Need,
    Ready,
    Requeue,
    Step,
    UniqueKey,
    Workflow,
)
from stoker.values.ids import new_job_id

from tests.app import frail, tasks
from tests.integration.letters import at_once, dead
from tests.integration.work import claim, work_off

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("nothing_broken")]

IGNORED = ("last_requeued_at",)


def fields_of(letter: DeadLetter) -> dict[str, Any]:
    letter.refresh_from_db()
    values = {field.attname: getattr(letter, field.attname) for field in letter._meta.fields}
    return {name: value for name, value in values.items() if name not in IGNORED}


def test_undo_restores_the_dead_letter_and_cancels_the_job() -> None:
    letter = dead(frail.charge, "order 1")
    before = fields_of(letter)
    sent = dead_letters.requeue(letter.pk, by="alice", because="the bank is back")
    answer = dead_letters.undo_requeue(letter.pk, by="bob", because="it is not")
    assert (answer.fate, answer.job_id) == (Fate.TAKEN_BACK, sent.job_id)
    assert fields_of(letter) == before
    job = Job.objects.get(pk=sent.job_id)
    assert (job.status, job.reason) == ("CANCELLED", "requeued, and undone by bob: it is not")
    assert not work_off()
    assert Requeue.objects.get().because == f"the bank is back ({job.reason})"


def test_undo_of_second_requeue_restores_the_first() -> None:
    letter = dead(frail.charge, "order 1")
    dead_letters.requeue(letter.pk, by="alice", because="once")
    work_off()
    before = fields_of(letter)
    dead_letters.requeue(letter.pk, by="bob", because="twice")
    dead_letters.undo_requeue(letter.pk)
    assert fields_of(letter) == before
    assert (letter.last_requeued_by, letter.requeued_count) == ("alice", 1)


def test_undone_requeue_can_be_repeated() -> None:
    letter = dead(frail.charge, "order 1")
    dead_letters.requeue(letter.pk)
    dead_letters.undo_requeue(letter.pk)
    frail.broken.clear()
    assert dead_letters.requeue(letter.pk).fate is Fate.REQUEUED
    assert work_off() == 1
    letter.refresh_from_db()
    assert (letter.state, letter.requeued_count) == ("resolved", 1)


def test_impossible_undo_explains_why_and_changes_nothing() -> None:
    letter = dead(frail.charge, "order 1")
    assert dead_letters.undo_requeue(letter.pk).fate is Fate.NOT_REQUEUED
    sent = dead_letters.requeue(letter.pk)
    before = fields_of(letter)
    (delivery,) = claim()
    answer = dead_letters.undo_requeue(letter.pk)
    assert (answer.fate, answer.job_id) == (Fate.UNDER_WAY, sent.job_id)
    assert "has begun" in answer.because
    assert fields_of(letter) == before
    assert delivery.job_id == sent.job_id
    DeadLetter.objects.update(state="discarded")
    assert dead_letters.undo_requeue(letter.pk).fate is Fate.CLOSED


def test_job_waiting_for_retry_cannot_be_undone() -> None:
    letter = dead(frail.charge, "order 1")
    sent = dead_letters.requeue(letter.pk)
    broker, fault = broker_for(settings_for()), plain_fault(ValueError, "no")
    retry = outcomes.Retried(fault, 3600, "error")
    finish(settings_for(), broker, [Attempted(one, retry, "w", None, 1.0) for one in claim()])
    assert dead_letters.undo_requeue(letter.pk).fate is Fate.UNDER_WAY
    assert broker.states([sent.job_id]) == {sent.job_id: "deferred"}
    letter.refresh_from_db()
    assert letter.state == "requeued"


def test_undo_returns_unique_key_and_period_to_the_failed_job() -> None:
    letter = dead(frail.fetch_hourly, "news")
    dead_letters.requeue(letter.pk)
    dead_letters.undo_requeue(letter.pk)
    assert UniqueKey.objects.get().job_id == letter.job_id
    assert frail.fetch_hourly.enqueue("news").was_duplicate, "the hour is not over"
    assert dead_letters.requeue(letter.pk).fate is Fate.REQUEUED


def test_undo_returns_the_known_unique_key_if_the_task_raises() -> None:
    letter = dead(frail.refund, "order 1")
    dead_letters.requeue(letter.pk)
    frail.broken.add("owner of order 1")
    assert dead_letters.undo_requeue(letter.pk).fate is Fate.TAKEN_BACK
    assert UniqueKey.objects.get().job_id == letter.job_id


def test_undo_frees_the_key_of_other_arguments() -> None:
    letter = dead(frail.fetch, "news")
    dead_letters.requeue(letter.pk, args=["sport"])
    dead_letters.undo_requeue(letter.pk)
    for feed in ("news", "sport"):
        assert not frail.fetch.enqueue(feed).was_duplicate


def test_undo_keeps_a_sequence_halted() -> None:
    letter = dead(frail.book, "account 1", "entry 1")
    second = frail.book.enqueue("account 1", "entry 2")
    assert not work_off()
    before = list(Need.objects.order_by("pk").values())
    for _ in range(2):
        dead_letters.requeue(letter.pk)
        dead_letters.undo_requeue(letter.pk)
        assert not work_off(), "the sequence stays halted"
    assert list(Need.objects.order_by("pk").values()) == before
    frail.broken.clear()
    dead_letters.requeue(letter.pk)
    assert [work_off(), work_off(), work_off()] == [1, 1, 0]
    second.refresh()
    assert second.state == JobState.SUCCESSFUL
    assert not Need.objects.exists()


def test_undo_fails_the_workflow_again() -> None:
    frail.broken.add("order 1")
    chain(frail.charge.si("order 1"), tasks.nothing.si()).enqueue()
    work_off()
    letter = DeadLetter.objects.get()
    before = list(Step.objects.order_by("pk").values())
    dead_letters.requeue(letter.pk)
    assert Workflow.objects.get().state == "RUNNING"
    assert dead_letters.undo_requeue(letter.pk).fate is Fate.TAKEN_BACK
    assert Workflow.objects.get().state == "FAILED"
    assert list(Step.objects.order_by("pk").values()) == before
    frail.broken.clear()
    dead_letters.requeue(letter.pk)
    assert [work_off(), work_off(), work_off()] == [1, 1, 0]
    assert Workflow.objects.get().state == "SUCCESSFUL"


def test_each_of_many_undone_requeues_has_its_own_answer() -> None:
    plain, keyed = dead(frail.charge, "order 1"), dead(frail.fetch_hourly, "news")
    halting, automatic = dead(frail.book, "account 1", "entry 1"), dead(frail.pay, "order 2")
    begun, closed, idle = (dead(frail.charge, f"order {number}") for number in (3, 4, 5))
    letters = [plain, keyed, halting, automatic]
    before = [fields_of(one) for one in letters]
    needs = list(Need.objects.order_by("pk").values())
    sent = dead_letters.requeue(begun.pk)
    assert [one.job_id for one in claim()] == [sent.job_id]
    for one in letters:
        dead_letters.requeue(one.pk, by="alice", because=f"{one.task} is mended")
    dead_letters.discard(closed.pk)
    gone = new_job_id()
    ids = [begun.pk, plain.pk, keyed.pk, gone, halting.pk, automatic.pk, closed.pk, idle.pk]
    answers = take_back_together(settings_for(), ids, "bob", "it is not")
    assert [one.dead_letter_id for one in answers] == ids
    assert [one.fate.name for one in answers] == [
        "UNDER_WAY", "TAKEN_BACK", "TAKEN_BACK", "GONE", "TAKEN_BACK", "TAKEN_BACK", "CLOSED",
        "NOT_REQUEUED",
    ]  # fmt: skip
    for one, fields in zip(letters, before, strict=True):
        restored = fields_of(one)
        assert (restored.pop("requeue_due_us") is None) is (fields.pop("requeue_due_us") is None)
        assert restored == fields
    assert list(Need.objects.order_by("pk").values()) == needs
    assert UniqueKey.objects.get().job_id == keyed.job_id
    reason = "requeued, and undone by bob: it is not"
    notes = dict(Requeue.objects.exclude(pk=sent.job_id).values_list("from_job_id", "because"))
    assert notes == {one.job_id: f"{one.task} is mended ({reason})" for one in letters}
    assert not Ready.objects.exists()


def test_job_run_and_put_back_meanwhile_is_not_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first attempt is recorded between the look at the attempts and the withdrawal."""
    letters = [dead(frail.charge, f"order {number}") for number in range(2)]
    sent = [dead_letters.requeue(one.pk) for one in letters]
    really = undoing.halts_of

    def halts_of(alias: str, job_ids: Any) -> Any:
        monkeypatch.setattr(undoing, "halts_of", really)
        Attempt.objects.create(
            job_id=sent[0].job_id, number=1, kind="failed", finished_at=timezone.now()
        )
        return really(alias, job_ids)

    monkeypatch.setattr(undoing, "halts_of", halts_of)
    answers = take_back_together(settings_for(), [one.pk for one in letters], "", "")
    # The attempt was recorded in the transaction that was rolled back.
    assert [one.fate for one in answers] == [Fate.TAKEN_BACK] * 2
    assert not Ready.objects.exists()


def test_undo_schedules_the_automatic_requeue_again() -> None:
    letter = dead(frail.pay, "order 1")
    assert letter.requeue_due_us is not None
    dead_letters.requeue(letter.pk)
    dead_letters.undo_requeue(letter.pk)
    letter.refresh_from_db()
    assert letter.requeue_due_us is not None


def test_undo_rolls_back_with_its_transaction() -> None:
    letter = dead(frail.charge, "order 1")
    dead_letters.requeue(letter.pk)
    with transaction.atomic():
        assert dead_letters.undo_requeue(letter.pk).fate is Fate.TAKEN_BACK
        transaction.set_rollback(True)
    letter.refresh_from_db()
    assert letter.state == "requeued"
    assert Ready.objects.count() == 1


def test_either_a_claim_or_an_undo_gets_the_job(seed: int) -> None:
    """A claim and two undos run at the same time, and exactly one of them gets the job."""
    chance = random.Random(seed)
    for number in range(6):
        letter = dead(frail.charge, f"order {number}")
        sent = dead_letters.requeue(letter.pk)
        fates, claims = _race(letter, chance)
        letter.refresh_from_db()
        job = Job.objects.get(pk=sent.job_id)
        if sum(claims):
            assert Fate.TAKEN_BACK not in fates
            assert (letter.state, job.status) == ("requeued", None)
        else:
            assert fates.count(Fate.TAKEN_BACK) == 1, fates
            assert (letter.state, job.status, letter.requeued_count) == ("open", "CANCELLED", 0)


def _race(letter: DeadLetter, chance: random.Random) -> tuple[list[Fate], list[int]]:
    """Return the answers of both undos, and how many jobs were claimed."""
    fates: list[Fate] = []
    claims: list[int] = []

    def undo() -> None:
        fates.append(dead_letters.undo_requeue(letter.pk).fate)

    def take() -> None:
        claims.append(len(claim()))

    calls = [undo, take, undo]
    chance.shuffle(calls)
    at_once(*calls)
    return fates, claims
