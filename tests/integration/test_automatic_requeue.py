"""Dead letters that upkeep requeues, reopens and purges."""

import logging
import random
from dataclasses import replace
from datetime import timedelta

import pytest
from django.utils import timezone

from stoker import DeadLetters, chain, dead_letters, group
from stoker.brokers.adapters import broker_for
from stoker.cluster.plan import Plan
from stoker.cluster.scheduler.scheduler import Upkeep
from stoker.conf import Settings, settings_for
from stoker.dead_letters.requeueing import requeue_due
from stoker.dead_letters.sweep import DeadLetterSweep
from stoker.models import Attempt, DeadLetter, Deferred, Job, Ready, Requeue
from stoker.setting_values import LetterRetention
from stoker.store.written import MICROSECONDS, database_now_us

from tests.app import frail
from tests.integration.letters import at_once, dead
from tests.integration.work import work_off
from tests.workflows.runner import StepByStep

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("nothing_broken")]


@pytest.fixture
def settings() -> Settings:
    return settings_for()


def sweep(settings: Settings) -> int:
    """Sweep once, as upkeep does."""
    return DeadLetterSweep(settings, lambda: None).sweep()


def let_cool() -> None:
    """Let all cool-downs end."""
    DeadLetter.objects.filter(requeue_due_us__isnull=False).update(requeue_due_us=1)


def test_dead_letter_is_requeued_once_after_its_cool_down(settings: Settings) -> None:
    before = database_now_us("default")
    letter = dead(frail.pay, "order 1")
    assert letter.requeue_due_us is not None
    assert 0 <= letter.requeue_due_us - before - 60 * MICROSECONDS < 60 * MICROSECONDS
    assert sweep(settings) == 0
    let_cool()
    assert sweep(settings) == 1
    assert sweep(settings) == 0
    letter.refresh_from_db()
    assert (letter.state, letter.requeued_count) == ("requeued", 1)
    assert (Requeue.objects.get().kind, letter.last_requeued_because) == (
        "policy",
        "requeue 1 of 2",
    )
    frail.broken.clear()
    assert work_off() == 1
    assert DeadLetter.objects.get().state == "resolved"


def test_cool_down_restarts_with_each_failure_and_requeues_are_limited(settings: Settings) -> None:
    first = dead(frail.pay, "order 1")
    for count in (1, 2):
        let_cool()
        assert sweep(settings) == 1
        work_off()
        letter = DeadLetter.objects.get()
        assert (letter.failure_count, letter.requeued_count) == (count + 1, count)
        assert letter.requeue_due_us is not None
        assert letter.requeue_due_us > database_now_us("default")
    for _ in range(3):
        let_cool()
        assert sweep(settings) == 0
    letter = DeadLetter.objects.get()
    assert (letter.pk, letter.state, letter.requeue_due_us) == (first.pk, "open", None)
    assert dead_letters.requeue(letter.id).fate.value == "requeued", "by hand it can be still"


def test_error_outside_the_policy_is_not_requeued(settings: Settings) -> None:
    frail.pay.enqueue("no order")
    work_off()
    assert DeadLetter.objects.get().requeue_due_us is None


def test_queue_policy_applies_to_task_without_own_policy(settings: Settings) -> None:
    policies = (("mail", DeadLetters("1h")), ("", DeadLetters("2h", max_requeues=1)))
    configured = replace(settings, dead_letters=policies)
    frail.broken.add("order 1")
    now = database_now_us("default")
    for queue in ("mail", "other"):
        frail.charge.using(queue_name=queue).enqueue("order 1")
    work_off(configured)
    due = {one.queue: (one.requeue_due_us or 0) - now for one in DeadLetter.objects.all()}
    hour = 3600 * MICROSECONDS
    assert hour <= due["mail"] < 1.1 * hour
    assert 2 * hour <= due["other"] < 2.1 * hour
    let_cool()
    assert sweep(configured) == 2


def test_removed_policy_requeues_nothing(settings: Settings) -> None:
    frail.broken.add("order 1")
    frail.charge.enqueue("order 1")
    work_off(replace(settings, dead_letters=(("", DeadLetters("1h")),)))
    let_cool()
    assert sweep(settings) == 0
    assert DeadLetter.objects.get().requeue_due_us is None


def test_no_requeue_while_newer_job_has_same_key(settings: Settings) -> None:
    frail.broken.add("a")
    configured = replace(settings, dead_letters=(("", DeadLetters("1h")),))
    frail.fetch.enqueue("a")
    work_off(configured)
    frail.fetch.enqueue("a")
    let_cool()
    assert sweep(configured) == 0
    assert Ready.objects.count() == 1


def test_failed_requeue_is_logged_once(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    letter = dead(frail.pay, "order 1")
    DeadLetter.objects.update(package=b"what nobody reads")
    let_cool()
    with caplog.at_level(logging.ERROR, "stoker"):
        caplog.clear()
        assert sweep(settings) == sweep(settings) == 0
    (record,) = caplog.records
    assert str(letter.pk) in record.getMessage()


def test_dead_letter_whose_key_raises_does_not_stop_the_others(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    letters = [dead(frail.refund, order) for order in ("order 1", "order 2")]
    let_cool()
    DeadLetter.objects.filter(pk=letters[1].pk).update(requeue_due_us=2)
    frail.broken.add("owner of order 1")
    caplog.clear()
    assert sweep(settings) == 1
    assert DeadLetter.objects.get(pk=letters[1].pk).state == "requeued"
    letter = DeadLetter.objects.get(pk=letters[0].pk)
    assert (letter.state, letter.requeue_due_us) == ("open", None)
    (record,) = caplog.records
    assert "Broken: owner of order 1 is broken. Raised by the key of unique" in record.getMessage()


def test_dead_letter_whose_requeue_raises_does_not_stop_the_others(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters = [dead(frail.pay, f"order {number}") for number in range(2)]
    let_cool()

    def requeue_or_raise(settings: Settings, letter: DeadLetter) -> bool:
        if letter.pk == letters[0].pk:
            raise frail.Broken
        return requeue_due(settings, letter)

    monkeypatch.setattr("stoker.dead_letters.sweep.requeue_due", requeue_or_raise)
    assert sweep(settings) == 1
    assert DeadLetter.objects.get(pk=letters[0].pk).requeue_due_us is None


@pytest.mark.django_db(transaction=True)
def test_two_concurrent_sweeps_requeue_each_dead_letter_once(settings: Settings) -> None:
    for number in range(20):
        dead(frail.pay, f"order {number}")
    let_cool()
    at_once(lambda: sweep(settings), lambda: sweep(settings))
    assert Ready.objects.count() == Requeue.objects.count() == 20
    assert set(DeadLetter.objects.values_list("requeued_count", flat=True)) == {1}


def test_dead_letter_reopens_if_its_requeued_job_was_cancelled_or_deleted(
    settings: Settings,
) -> None:
    letters = [dead(frail.charge, f"order {number}") for number in range(3)]
    kept = [dead_letters.requeue(one.id).job_id for one in letters]
    frail.charge.get_result(str(kept[0])).cancel()
    Ready.objects.filter(pk=kept[1]).delete()
    Job.objects.filter(pk=kept[1]).delete()
    sweep(settings)
    states = [DeadLetter.objects.get(pk=one.pk).state for one in letters]
    assert states == ["open", "open", "requeued"]


def test_attempts_are_kept_as_long_as_their_dead_letter(settings: Settings) -> None:
    letter = dead(frail.charge, "order 1")
    dead_letters.requeue(letter.id)
    work_off()
    dead(frail.charge, "order 2")
    Job.objects.update(finished_at=timezone.now() - timedelta(days=365))
    broker = broker_for(settings)
    assert Upkeep(Plan(), settings, broker, lambda: None).prune() == 3
    assert not Job.objects.exists()
    assert len(dead_letters.get(letter.id).attempts) == 2
    assert dead_letters.purge(timedelta(0), state="open").done == 2
    assert not Attempt.objects.exists()


def test_old_dead_letters_are_purged_by_retention_settings(settings: Settings) -> None:
    old, young, forgotten = (dead(frail.charge, f"order {number}") for number in range(3))
    for one in (old, young):
        dead_letters.discard(one.id)
    long_ago = timezone.now() - timedelta(days=31)
    DeadLetter.objects.filter(pk=old.pk).update(closed_at=long_ago)
    DeadLetter.objects.filter(pk=forgotten.pk).update(failed_at=long_ago)
    Upkeep(Plan(), settings, broker_for(settings), lambda: None).run()
    assert set(DeadLetter.objects.values_list("pk", flat=True)) == {young.pk, forgotten.pk}
    keep = LetterRetention(closed_seconds=None, open_seconds=86_400.0)
    assert DeadLetterSweep(replace(settings, keep_dead_letters=keep), lambda: None).purge() == 1
    assert DeadLetter.objects.get() == young


def test_on_dead_letter_is_called_and_its_error_logged(caplog: pytest.LogCaptureFixture) -> None:
    letter = dead(frail.pay, "order 1")
    frail.broken.add("the ear")
    dead_letters.requeue(letter.id)
    with caplog.at_level(logging.ERROR, "stoker"):
        work_off()
    assert frail.TOLD == ["tests.app.frail.pay 1", "tests.app.frail.pay 2"]
    assert "The on_dead_letter of tests.app.frail.pay raised" in caplog.text
    assert DeadLetter.objects.get().failure_count == 2


def test_random_actions_never_multiply_jobs_or_dead_letters(settings: Settings, seed: int) -> None:
    """A person, upkeep and the jobs act in random order."""
    chance = random.Random(seed)
    orders = [f"order {number}" for number in range(4)]
    for order in orders:
        dead(frail.pay, order)
    for _ in range(60):
        step = chance.randrange(6)
        if step == 0:
            dead_letters.requeue_many()
        elif step == 1:
            let_cool()
        elif step == 2:
            sweep(settings)
        elif step == 3:
            work_off()
        elif step == 4:
            frail.broken.clear()
            frail.broken.update(chance.sample(orders, chance.randrange(5)))
        elif waiting := Ready.objects.first():
            frail.pay.get_result(str(waiting.pk)).cancel()
        assert DeadLetter.objects.count() == 4
        assert Job.objects.filter(status=None).count() <= 4
        assert not Deferred.objects.exists()


@pytest.mark.parametrize("is_cancelled_first", [False, True])
def test_cancelled_workflow_is_not_revived(settings: Settings, is_cancelled_first: bool) -> None:
    frail.broken.add("order 1")
    workflow = chain(group(frail.pay.si("order 1"), frail.charge.si("2")), frail.charge.si("3"))
    flow, hand = workflow.enqueue(), StepByStep()
    hand.claim()
    if is_cancelled_first:
        assert flow.cancel("not wanted")
    hand.end("order 1")
    if not is_cancelled_first:
        assert flow.cancel("not wanted")
    hand.end("2")
    frail.broken.clear()
    let_cool()
    assert sweep(settings) == 0
    letter = DeadLetter.objects.get()
    assert (letter.state, letter.requeue_due_us) == ("open", None)
    assert not Ready.objects.exists()
    flow.refresh()
    assert (flow.status, flow.reason) == ("CANCELLED", "not wanted")
    assert flow.retry() > 0, "by hand it can be still"
    hand.run_all()
    flow.refresh()
    assert flow.status == "SUCCESSFUL"
