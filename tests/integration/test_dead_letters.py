"""Dead letters: found, requeued, discarded, purged."""

from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.core.management import call_command
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from stoker import DuplicateJob, Unique, dead_letters
from stoker.brokers.adapters import broker_for
from stoker.conf import settings_for
from stoker.dead_letters import Fate
from stoker.exceptions import DeadLetterNotFound
from stoker.guards.sweep import forget_needs, sweep_keys
from stoker.jobs.package import Package, sealer_for
from stoker.jobs.sealing import carrying
from stoker.models import Attempt, DeadLetter, Job, Need, Ready, Requeue
from stoker.operations.dead_letters import DISCARD
from stoker.operations.operation import Operator
from stoker.tasks.arguments import HIDDEN

from tests.app import frail, payments, tasks
from tests.integration.letters import at_once, dead
from tests.integration.work import work_off, work_off_when_due

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("nothing_broken")]


# -- requeue --------------------------------------------------------------------------------------


def test_requeued_job_that_succeeds_resolves_its_dead_letter() -> None:
    letter = dead(frail.charge, "order 1")
    frail.broken.clear()
    answer = dead_letters.requeue(letter.id, by="alice", because="the bank is back")
    assert answer.fate is Fate.REQUEUED
    letter.refresh_from_db()
    assert (letter.state, letter.requeued_count, letter.last_requeued_by) == (
        "requeued",
        1,
        "alice",
    )
    assert work_off() == 1
    assert frail.charge.get_result(str(answer.job_id)).return_value == "order 1"
    letter.refresh_from_db()
    assert (letter.state, letter.requeued_count) == ("resolved", 1)
    assert letter.last_requeued_because == "the bank is back"
    assert letter.closed_at is not None
    assert dead_letters.count() == 0


def test_requeued_job_that_fails_updates_its_dead_letter() -> None:
    first = dead(frail.charge, "order 1")
    for count in (2, 3, 4):
        answer = dead_letters.requeue(first.id)
        assert work_off() == 1
        letter = DeadLetter.objects.get()
        assert (letter.pk, letter.failure_count, letter.state) == (first.pk, count, "open")
        assert letter.job_id == answer.job_id
        assert letter.first_failed_at == first.first_failed_at
        assert letter.failed_at > first.failed_at
    story = dead_letters.get(first.id)
    assert [one.exception_class for one in story.attempts] == ["tests.app.frail.Broken"] * 4
    assert [one.job_id for one in story.requeues][-1] == letter.job_id
    assert (story.args, story.kwargs) == (("order 1",), {})


def test_story_of_a_long_history_is_its_newest_part(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    letter = dead(frail.charge, "order 1")
    jobs = [letter.job_id]
    for _ in range(3):
        jobs.append(dead_letters.requeue(letter.id).job_id)
        assert work_off() == 1
    assert not dead_letters.get(letter.id).has_more
    monkeypatch.setattr("stoker.dead_letters.service.NEWEST", 2)
    story = dead_letters.get(letter.id)
    assert [one.job_id for one in story.attempts] == jobs[-2:]
    assert [one.job_id for one in story.requeues] == jobs[-2:]
    assert story.has_more
    call_command("stoker", "dead", "show", str(letter.id))
    assert "Older attempts or requeues are not shown." in capsys.readouterr().out


def test_second_requeue_returns_the_pending_job() -> None:
    letter = dead(frail.charge, "order 1")
    first, second = dead_letters.requeue(letter.id), dead_letters.requeue(letter.id)
    assert (first.fate, second.fate) == (Fate.REQUEUED, Fate.UNDER_WAY)
    assert second.job_id == first.job_id
    assert Ready.objects.count() == 1


def test_cancelled_requeue_can_be_requeued_again() -> None:
    letter = dead(frail.charge, "order 1")
    answer = dead_letters.requeue(letter.id)
    frail.charge.get_result(str(answer.job_id)).cancel()
    again = dead_letters.requeue(letter.id)
    assert again.fate is Fate.REQUEUED
    assert again.job_id != answer.job_id
    assert DeadLetter.objects.get().requeued_count == 2


def test_cancelled_requeue_can_be_discarded_before_upkeep_reopens_it() -> None:
    letter = dead(frail.charge, "order 1")
    answer = dead_letters.requeue(letter.id)
    frail.charge.get_result(str(answer.job_id)).cancel()
    assert DeadLetter.objects.get().state == "requeued"
    assert dead_letters.discard(letter.id)
    assert DeadLetter.objects.get().state == "discarded"


def test_requeue_rolls_back_with_its_transaction() -> None:
    letter = dead(frail.charge, "order 1")
    with transaction.atomic():
        dead_letters.requeue(letter.id)
        transaction.set_rollback(True)
    letter.refresh_from_db()
    assert (letter.state, letter.requeued_count) == ("open", 0)
    assert not Ready.objects.exists()
    assert not Requeue.objects.exists()


def test_requeue_accepts_other_arguments_queue_and_run_after() -> None:
    letter = dead(frail.charge, "order 1")
    answer = dead_letters.requeue(
        letter.id, args=("order 2",), kwargs={"note": "again"}, to_queue="slow", run_after=60
    )
    result = frail.charge.get_result(str(answer.job_id))
    assert (result.args, result.kwargs) == (["order 2"], {"note": "again"})
    assert (result.task.queue_name, result.state) == ("slow", "DEFERRED")


def test_requeue_with_hidden_values_keeps_the_secrets() -> None:
    secrets = {"password": payments.PASSWORD, "more": payments.MORE}
    letter = dead(payments.pay, -7, payments.IBAN, **secrets)
    shown = {"password": HIDDEN, "more": {"shop": {"api_token": HIDDEN, "currency": "CHF"}}}
    answer = dead_letters.requeue(letter.id, args=[7, HIDDEN], kwargs=shown)
    result = payments.pay.get_result(str(answer.job_id))
    assert result.args == [7, payments.IBAN]
    more = {"shop": {"api_token": payments.TOKEN, "currency": "CHF"}}
    assert result.kwargs == {"password": payments.PASSWORD, "more": more}


@pytest.mark.parametrize(
    ("is_readable", "kwargs"), [(True, {"more": HIDDEN}), (False, {"password": HIDDEN})]
)
def test_requeue_with_a_hidden_value_that_is_not_known_is_refused(
    is_readable: bool, kwargs: dict[str, Any]
) -> None:
    letter = dead(payments.pay, -7, payments.IBAN, password=payments.PASSWORD)
    if not is_readable:
        DeadLetter.objects.update(package=b"damaged")
    answer = dead_letters.requeue(letter.id, args=[7, "DE"], kwargs=kwargs)
    assert answer.fate is Fate.REFUSED
    assert answer.because == "write a value instead of [withheld]"
    assert not Ready.objects.exists()


def test_requeue_without_an_element_of_a_list_with_hidden_values_is_refused() -> None:
    """Otherwise the next element would get the hidden value of the one that was removed."""
    accounts = [{"id": 1, "token": "token of 1"}, {"id": 2, "token": "token of 2"}]
    letter = dead(frail.keep, "order 1", note=accounts)
    answer = dead_letters.requeue(letter.id, kwargs={"note": [{"id": 2, "token": HIDDEN}]})
    assert answer.fate is Fate.REFUSED
    assert answer.because == (
        "elements of a list or the arguments may have been added, removed or moved: write their "
        "values instead of [withheld], or leave the elements in their places"
    )
    assert dead_letters.get(letter.id).kwargs == {"note": accounts}
    answer = dead_letters.requeue(letter.id, kwargs={"note": [{"id": 2, "token": "token of 2"}]})
    assert answer.fate is Fate.REQUEUED


def test_requeued_job_keeps_its_options() -> None:
    frail.broken.add("order 1")
    result = frail.charge.using(max_attempts=2, queue_name="mail", priority=7).enqueue("order 1")
    work_off()
    work_off_when_due()
    letter = DeadLetter.objects.get(job_id=result.id)
    answer = dead_letters.requeue(letter.id)
    job = Job.objects.get(pk=answer.job_id)
    assert (job.queue, job.priority) == ("mail", 7)
    assert work_off() == 1
    assert not DeadLetter.objects.filter(state="open"), "it has a second attempt"


def test_requeue_with_current_options_uses_those_of_the_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The time-out and the number of attempts were too small when the job was enqueued."""
    letters = [dead(frail.charge.using(timeout=1), order) for order in ("order 1", "order 2")]
    mended = replace(frail.charge, max_attempts=4, timeout=60.0, on_failure=tasks.echo)
    monkeypatch.setattr(frail, "charge", mended)
    as_before = dead_letters.requeue(letters[0].id)
    options = opened(Job.objects.get(pk=as_before.job_id).package).options
    assert (options.max_attempts, options.timeout_seconds, options.hooks) == (1, 1.0, "")
    assert dead_letters.requeue_many(current_options=True).done == 1
    job = Job.objects.get(status=None, task=mended.module_path, pk__gt=letters[1].job_id)
    options = opened(job.package).options
    assert (options.max_attempts, options.timeout_seconds) == (4, 60.0)
    assert "echo" in options.hooks
    frail.broken.clear()
    work_off()
    assert not DeadLetter.objects.exclude(state="resolved")


def test_requeued_job_expires_when_its_task_says() -> None:
    """The deadline of the failed job may have passed already."""
    letter = dead(frail.charge.using(expires=3600), "order 1")
    assert opened(letter.package).options.expires_at is not None
    answer = dead_letters.requeue(letter.id)
    assert opened(Job.objects.get(pk=answer.job_id).package).options.expires_at is None


def opened(package: bytes) -> Package:
    return sealer_for(settings_for()).open(bytes(package))


def test_requeued_job_keeps_its_metadata() -> None:
    with carrying({"trace": "abc"}):
        letter = dead(frail.charge, "order 1")
    answer = dead_letters.requeue(letter.id)
    assert opened(Job.objects.get(pk=answer.job_id).package).metadata["trace"] == "abc"


def test_unknown_id_raises_dead_letter_not_found() -> None:
    for call in (dead_letters.get, dead_letters.requeue):
        with pytest.raises(DeadLetterNotFound):
            call(uuid4())
    with pytest.raises(DeadLetterNotFound):
        dead_letters.get("no id at all")
    assert not dead_letters.discard(uuid4())


def test_requeue_of_unknown_task_is_refused_and_changes_nothing() -> None:
    letter = dead(frail.charge, "order 1")
    DeadLetter.objects.update(task="tests.app.frail.gone", package=b"what nobody reads")
    answer = dead_letters.requeue(letter.id)
    assert answer.fate is Fate.REFUSED
    assert "arguments" in answer.because
    answer = dead_letters.requeue(letter.id, args=("order 1",))
    assert answer.fate is Fate.REFUSED
    assert "no task 'tests.app.frail.gone'" in answer.because
    letter.refresh_from_db()
    assert (letter.state, letter.requeued_count) == ("open", 0)


def test_unreadable_package_can_be_requeued_with_new_arguments() -> None:
    """This happens after a change of SECRET_KEY."""
    letter = dead(frail.charge, "order 1")
    DeadLetter.objects.update(package=b"what nobody reads")
    frail.broken.clear()
    answer = dead_letters.requeue(letter.id, args=("order 1",))
    assert answer.fate is Fate.REQUEUED
    work_off()
    assert DeadLetter.objects.get().state == "resolved"


def test_requeued_unreadable_package_gets_the_options_of_its_task() -> None:
    """The options were in the package. A task that may run only once must not run three times."""
    letter = dead(frail.charge, "order 1")
    DeadLetter.objects.update(package=b"what nobody reads")
    limited = replace(frail.charge, max_attempts=1, timeout=7.0, on_failure=tasks.echo)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frail, "charge", limited)
        answer = dead_letters.requeue(letter.id, args=("order 1",))
    assert answer.job_id is not None
    options = opened(Job.objects.get(pk=answer.job_id).package).options
    assert (options.max_attempts, options.timeout_seconds) == (1, 7.0)
    assert "echo" in options.hooks
    work_off()
    assert DeadLetter.objects.get().failure_count == 2, "there was one attempt"
    assert Job.objects.filter(task=tasks.echo.module_path).exists(), "its hook"


def test_requeued_job_that_becomes_unreadable_updates_its_dead_letter() -> None:
    letter = dead(frail.charge, "order 1")
    answer = dead_letters.requeue(letter.id)
    Job.objects.filter(pk=answer.job_id).update(package=b"what nobody reads")
    assert work_off() == 1
    entry = DeadLetter.objects.get()
    assert (entry.pk, entry.reason, entry.failure_count) == (letter.pk, "unreadable", 2)


def test_requeued_job_comes_before_jobs_enqueued_later() -> None:
    letter = dead(frail.charge, "order 1")
    frail.charge.enqueue("order 2")
    answer = dead_letters.requeue(letter.id)
    first = Ready.objects.order_by("rank", "job_id").first()
    assert first is not None
    assert first.job_id == answer.job_id


# -- unique keys ----------------------------------------------------------------------------------


def test_jobs_of_one_unique_key_share_a_dead_letter() -> None:
    letter = dead(frail.fetch, "a")
    assert letter.key == "unique feed:a"
    again = dead(frail.fetch, "a", note="a newer job")
    assert (again.pk, again.failure_count) == (letter.pk, 2)
    assert dead_letters.get(letter.id).kwargs == {"note": "a newer job"}


def test_requeue_returns_newer_job_of_same_key_whose_success_resolves() -> None:
    letter = dead(frail.fetch, "a", note="old")
    newer = frail.fetch.enqueue("a", note="new")
    answer = dead_letters.requeue(letter.id)
    assert (answer.fate, str(answer.job_id)) == (Fate.NEWER, newer.id)
    assert frail.fetch.get_result(newer.id).kwargs == {"note": "new"}
    assert Ready.objects.count() == 1
    frail.broken.clear()
    work_off()
    assert DeadLetter.objects.get().state == "resolved"


def test_requeued_job_takes_its_unique_key_again() -> None:
    letter = dead(frail.fetch, "a")
    answer = dead_letters.requeue(letter.id)
    assert frail.fetch.enqueue("a").id == str(answer.job_id)
    raising = frail.fetch.using(unique=Unique("feed:{feed}", on_conflict="raise"))
    with pytest.raises(DuplicateJob):
        raising.enqueue("a")
    assert Ready.objects.count() == 1


def test_unique_period_does_not_block_requeue() -> None:
    letter = dead(frail.fetch_hourly, "a")
    assert frail.fetch_hourly.enqueue("a").was_duplicate
    assert dead_letters.requeue(letter.id).fate is Fate.REQUEUED


def test_requeue_finds_newer_job_of_key_given_by_using() -> None:
    frail.broken.add("order 1")
    task = frail.charge.using(unique=Unique("order:{order}"))
    task.enqueue("order 1")
    work_off()
    letter = DeadLetter.objects.get()
    newer = task.enqueue("order 1")
    answer = dead_letters.requeue(letter.id)
    assert (answer.fate, str(answer.job_id)) == (Fate.NEWER, newer.id)


def test_success_of_newer_job_of_same_key_resolves_dead_letter() -> None:
    """Without a requeue."""
    letter = dead(frail.fetch, "a")
    frail.broken.clear()
    frail.fetch.enqueue("a")
    work_off()
    letter.refresh_from_db()
    assert letter.state == "resolved"


# -- sequences ------------------------------------------------------------------------------------


def test_halted_sequence_continues_after_requeue_succeeds() -> None:
    letter = dead(frail.book, "account 1", "entry 1")
    second = frail.book.enqueue("account 1", "entry 2")
    assert not work_off()
    dead_letters.requeue(letter.id)
    assert work_off() == 1, "the requeued job, and it fails"
    assert not work_off()
    frail.broken.clear()
    dead_letters.requeue(letter.id)
    third = frail.book.enqueue("account 1", "entry 3")
    assert [work_off(), work_off(), work_off(), work_off()] == [1, 1, 1, 0]
    for result in (second, third):
        result.refresh()
    assert second.finished_at < third.finished_at
    assert not Need.objects.exists()
    assert DeadLetter.objects.get().state == "resolved"


def test_requeued_job_of_a_halted_sequence_runs_first() -> None:
    letter = dead(frail.book, "account 1", "entry 1")
    second = frail.book.enqueue("account 1", "entry 2")
    assert not work_off()
    frail.broken.clear()
    answer = dead_letters.requeue(letter.id)
    assert work_off() == 1
    assert Job.objects.get(pk=answer.job_id).status == "SUCCESSFUL"
    assert Job.objects.get(pk=second.id).status is None


def test_halted_sequence_goes_on_with_the_newer_job_of_the_same_key() -> None:
    letter = dead(frail.book_once, "account 1", "entry 1")
    other = frail.book_once.enqueue("account 1", "entry 2")
    newer = frail.book_once.enqueue("account 1", "entry 1")
    assert not work_off()
    frail.broken.clear()
    for _ in range(2):
        answer = dead_letters.requeue(letter.id)
        assert (answer.fate, str(answer.job_id)) == (dead_letters.Fate.NEWER, newer.id)
    assert work_off() == 1
    assert Job.objects.get(pk=newer.id).status == "SUCCESSFUL"
    assert work_off() == 1
    assert Job.objects.get(pk=other.id).status == "SUCCESSFUL"
    assert not Need.objects.exists()
    assert DeadLetter.objects.get().state == "resolved"


def test_halted_sequence_goes_on_if_the_newer_job_of_the_key_is_in_another() -> None:
    letter = dead(frail.book_once, "account 1", "entry 1")
    frail.book_once.enqueue("account 1", "entry 2")
    newer = frail.book_once.using(sequence=None).enqueue("account 1", "entry 1")
    assert not newer.was_duplicate
    frail.broken.clear()
    assert dead_letters.requeue(letter.id).fate is dead_letters.Fate.NEWER
    assert work_off() == 2
    assert not Need.objects.exists()


def test_halted_sequence_continues_after_discard() -> None:
    letter = dead(frail.book, "account 1", "entry 1")
    frail.book.enqueue("account 1", "entry 2")
    assert not work_off()
    assert dead_letters.discard(letter.id, by="alice", because="booked by hand")
    assert work_off() == 1
    assert not Need.objects.exists()


def test_halted_sequence_continues_after_purge() -> None:
    dead(frail.book, "account 1", "entry 1")
    frail.book.enqueue("account 1", "entry 2")
    assert not work_off()
    assert dead_letters.purge(timedelta(0), state="open").done == 1
    assert work_off() == 1


@pytest.mark.parametrize("is_hour_over", [False, True])
def test_upkeep_continues_sequence_whose_dead_letter_is_closed(is_hour_over: bool) -> None:
    """It was closed by a newer job of the key, or by hand in the tables."""
    dead(frail.book, "account 1", "entry 1")
    frail.book.enqueue("account 1", "entry 2")
    assert not work_off()
    for is_halted in (True, False):
        DeadLetter.objects.update(state="open" if is_halted else "resolved")
        if is_hour_over:
            forget_needs("default", None, 100)
        sweep_keys("default", None, 100, only_lines=True)
        assert work_off() == (0 if is_halted else 1)


# -- wake-ups -------------------------------------------------------------------------------------


@pytest.fixture
def woken(monkeypatch: pytest.MonkeyPatch) -> list[Collection[str]]:
    """Record the queues that clusters are woken for, instead of waking them."""
    queues: list[Collection[str]] = []

    def wake_up(names: Collection[str], **_: Any) -> None:
        queues.append(names)

    monkeypatch.setattr(broker_for(settings_for()), "wake_up", wake_up)
    return queues


@pytest.mark.django_db(transaction=True)
def test_requeue_wakes_clusters_after_commit(woken: list[Collection[str]]) -> None:
    letter = dead(frail.charge, "order 1")
    woken.clear()
    with transaction.atomic():
        dead_letters.requeue(letter.id)
        assert not woken
    assert [list(queues) for queues in woken] == [["default"]]


@pytest.mark.django_db(transaction=True)
def test_discard_wakes_clusters_of_halted_sequence_after_commit(
    woken: list[Collection[str]],
) -> None:
    letter = dead(frail.book, "account 1", "entry 1")
    frail.book.enqueue("account 1", "entry 2")
    assert not work_off()
    woken.clear()
    with transaction.atomic():
        dead_letters.discard(letter.id)
        assert not woken
    assert [list(queues) for queues in woken] == [["default"]]


# -- discard, purge -------------------------------------------------------------------------------


def test_discard_records_author_and_reason() -> None:
    letter = dead(frail.charge, "order 1")
    assert dead_letters.discard(letter.id, by="alice", because="paid in cash")
    assert not dead_letters.discard(letter.id)
    letter.refresh_from_db()
    assert (letter.state, letter.closed_by) == ("discarded", "alice")
    assert letter.closed_because == "paid in cash"
    assert dead_letters.requeue(letter.id).fate is Fate.CLOSED
    assert not Ready.objects.exists()


def test_discard_reads_no_attempts() -> None:
    """A dead letter with a unique key may have a long history."""
    letter = dead(frail.charge, "order 1")
    operator = Operator(settings_for(), "alice")
    with CaptureQueriesContext(connection) as captured:
        done = [DISCARD.perform(operator, str(letter.pk)).is_good for _ in range(2)]
    assert done == [True, False]
    assert not [one for one in captured if "stoker_attempt" in one["sql"]]


def test_requeued_dead_letter_is_not_discarded() -> None:
    letter = dead(frail.charge, "order 1")
    dead_letters.requeue(letter.id)
    assert not dead_letters.discard(letter.id)
    assert dead_letters.discard_many().matched == 0


def test_purge_deletes_old_closed_dead_letters_with_their_history() -> None:
    kept = dead(frail.charge, "order 1")
    gone = dead(frail.charge, "order 2")
    dead_letters.requeue(gone.id)
    work_off()
    Job.objects.filter(pk=gone.job_id).delete()
    for one in (kept, gone):
        dead_letters.discard(one.id)
    long_ago = timezone.now() - timedelta(days=31)
    DeadLetter.objects.filter(pk=gone.pk).update(closed_at=long_ago)
    old = timedelta(days=30)
    assert dead_letters.purge(old, dry_run=True).matched == 1
    assert dead_letters.purge(old, state="open").matched == 0
    assert dead_letters.purge(old).done == 1
    assert dead_letters.purge(old).done == 0
    assert DeadLetter.objects.get() == kept
    assert not Requeue.objects.exists()
    assert not Attempt.objects.filter(job_id=gone.job_id).exists()
    assert Attempt.objects.filter(job_id=kept.job_id).exists()


def test_purge_keeps_recent_open_dead_letters() -> None:
    letter = dead(frail.charge, "order 1")
    assert dead_letters.purge(timedelta(days=30), state="open").matched == 0
    DeadLetter.objects.update(failed_at=timezone.now() - timedelta(days=31))
    assert dead_letters.purge(timedelta(days=30), state="open").done == 1
    assert not DeadLetter.objects.filter(pk=letter.pk).exists()


def test_purge_keeps_attempts_of_jobs_that_are_kept() -> None:
    letter = dead(frail.charge, "order 1")
    dead_letters.discard(letter.id)
    assert dead_letters.purge(timedelta(0)).done == 1
    assert Job.objects.filter(pk=letter.job_id).exists()
    assert Attempt.objects.filter(job_id=letter.job_id).exists()


# -- bulk actions ---------------------------------------------------------------------------------


def test_bulk_requeue_and_discard_apply_filters_and_limit() -> None:
    for order in ("order 1", "order 2", "order 3"):
        dead(frail.charge, order)
    dead(frail.fetch, "a")
    dry = dead_letters.requeue_many(task="tests.app.frail.charge", dry_run=True)
    assert (dry.matched, dry.done) == (3, 0)
    assert not Ready.objects.exists()
    first = dead_letters.requeue_many(task="tests.app.frail.charge", limit=2)
    assert (first.matched, first.done, first.others) == (2, 2, [])
    assert dead_letters.requeue_many(task="tests.app.frail.charge").done == 1
    assert Ready.objects.count() == 3
    assert dead_letters.discard_many(text="a is broken", by="alice").done == 1
    assert dead_letters.requeue_many().matched == 0


@pytest.mark.parametrize("state", ["requeued", "resolved", "discarded", "closed", "all", "nix"])
def test_bulk_actions_refuse_states_other_than_open(state: str) -> None:
    dead(frail.charge, "order 1")
    for act in (dead_letters.discard_many, dead_letters.requeue_many):
        for dry_run in (False, True):
            with pytest.raises(ValueError, match=r"state=.*: only open dead letters"):
                act(state=state, dry_run=dry_run)
    assert DeadLetter.objects.get().state == "open"
    assert dead_letters.discard_many(state="open").done == 1


@pytest.mark.parametrize("limit", [0, -2, 2**70, "9"])
def test_invalid_limit_raises_value_error(limit: Any) -> None:
    dead(frail.charge, "order 1")
    for act in (dead_letters.find, dead_letters.discard_many, dead_letters.requeue_many):
        with pytest.raises(ValueError, match=r"limit=.* must be"):
            act(limit=limit)
    with pytest.raises(ValueError, match=r"limit=.* must be"):
        dead_letters.purge(timedelta(0), state="all", limit=limit)


@pytest.mark.parametrize(
    ("filters", "sentence"),
    [
        ({"state": "nix"}, "state='nix': write one of open, requeued"),
        ({"reason": "nix"}, "reason='nix': write one of error, timeout"),
        ({"failed_after": "2h"}, "failed_after='2h': give a datetime"),
        ({"failed_before": timedelta(1)}, "failed_before=.*: give a datetime"),
    ],
)
def test_invalid_filter_raises_value_error(filters: Any, sentence: str) -> None:
    for look in (dead_letters.find, dead_letters.count, dead_letters.stats):
        with pytest.raises(ValueError, match=sentence):
            look(**filters)


def test_unstorable_characters_are_escaped_and_searchable() -> None:
    letter = dead(frail.charge, "order 1")
    assert dead_letters.count(text="\x00") == dead_letters.count(key="\x00") == 0
    answer = dead_letters.requeue(letter.id, by="\x00", because="\ud800")
    story = dead_letters.get(letter.id)
    assert [(one.by, one.because) for one in story.requeues] == [("\\x00", "\\ud800")]
    assert charge_result(answer).cancel("\x00")


def charge_result(answer: dead_letters.Answer) -> Any:
    return frail.charge.get_result(str(answer.job_id))


def test_refused_dead_letter_does_not_stop_bulk_requeue() -> None:
    letters = [dead(frail.charge, f"order {number}") for number in range(3)]
    DeadLetter.objects.filter(pk=letters[1].pk).update(package=b"what nobody reads")
    bulk = dead_letters.requeue_many()
    assert (bulk.matched, bulk.done) == (3, 2)
    assert [(one.dead_letter_id, one.fate) for one in bulk.others] == [
        (letters[1].pk, Fate.REFUSED)
    ]


# -- find, count, stats ---------------------------------------------------------------------------


def test_empty_store_finds_nothing() -> None:
    assert dead_letters.find().letters == []
    assert dead_letters.find().next is None
    assert dead_letters.count() == 0
    seen = dead_letters.stats()
    assert (seen.total, seen.tasks, seen.oldest, seen.newest, seen.faults) == (0, 0, None, None, [])
    assert dead_letters.requeue_many().matched == dead_letters.purge(timedelta(0)).matched == 0


def test_pages_cover_all_dead_letters_without_overlap() -> None:
    letters = {dead(frail.charge, f"order {number}").pk for number in range(7)}
    DeadLetter.objects.update(failed_at=timezone.now())  # so that the id decides the order
    pages: list[list[UUID]] = []
    after = None
    while not pages or after is not None:
        page = dead_letters.find(limit=3, after=after)
        pages.append([one.pk for one in page.letters])
        after = page.next
    assert [len(page) for page in pages] == [3, 3, 1]
    assert {pk for page in pages for pk in page} == letters
    with pytest.raises(ValueError, match="page"):
        dead_letters.find(after="nowhere")


def test_each_filter_finds_the_matching_dead_letters() -> None:
    charged = dead(frail.charge, "order 1")
    fetched = dead(frail.fetch.using(queue_name="slow"), "a")
    now = timezone.now()
    hour = timedelta(hours=1)
    DeadLetter.objects.filter(pk=fetched.pk).update(failed_at=now - 2 * hour, reason="timeout")
    found: dict[str, tuple[dict[str, Any], DeadLetter]] = {
        "task": ({"task": "tests.app.frail.charge"}, charged),
        "queue": ({"queue": "slow"}, fetched),
        "key": ({"key": "feed:a"}, fetched),
        "reason": ({"reason": "timeout"}, fetched),
        "after": ({"failed_after": now - hour}, charged),
        "before": ({"failed_before": now - hour}, fetched),
        "text": ({"text": "ORDER 1 is"}, charged),
    }
    for name, (filters, letter) in found.items():
        assert [one.pk for one in dead_letters.find(**filters).letters] == [letter.pk], name
        assert dead_letters.count(**filters) == dead_letters.stats(**filters).total == 1, name
    assert dead_letters.count(fingerprint=charged.fingerprint) == 2
    assert dead_letters.count(fingerprint="of another fault") == 0
    assert dead_letters.count(state="closed") == 0
    dead_letters.discard(charged.id)
    assert dead_letters.count() == dead_letters.count(state="discarded") == 1
    assert dead_letters.count(state="all") == 2
    for wrong in ({"state": "lost"}, {"reason": "bad luck"}):
        with pytest.raises(ValueError, match="write one of"):
            dead_letters.count(**wrong)


def test_stats_group_equal_faults() -> None:
    for order in ("order 1", "order 2"):
        dead(frail.charge, order)
    letter = dead(frail.fetch, "a")
    dead_letters.requeue(letter.id)
    work_off()
    seen = dead_letters.stats()
    assert (seen.total, seen.tasks, seen.queues, seen.failures, seen.requeues) == (3, 2, 1, 4, 1)
    assert [(one.task, one.number, one.failures) for one in seen.faults] == [
        ("tests.app.frail.charge", 2, 2),
        ("tests.app.frail.fetch", 1, 2),
    ]
    assert len(dead_letters.stats(groups=1).faults) == 1


# -- concurrency ----------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_concurrent_requeues_and_enqueues_make_one_job_each() -> None:
    """Two bulk requeues, and a thread that enqueues newer jobs of the same keys."""
    letters = [dead(frail.charge, f"order {number}") for number in range(10)]
    keyed = [dead(frail.fetch, f"feed {number}") for number in range(10)]
    frail.broken.clear()

    def newer() -> None:
        for number in reversed(range(10)):
            frail.fetch.enqueue(f"feed {number}")

    def again() -> None:
        dead_letters.requeue_many(by="alice")

    at_once(again, newer, again)
    assert Ready.objects.count() == Job.objects.filter(status=None).count() == 20
    assert work_off() == 20
    states = DeadLetter.objects.values_list("state", flat=True)
    assert [*states] == ["resolved"] * len([*letters, *keyed])
