"""What a job notes while it runs: a checkpoint for its next attempt, and how far it is."""

import pickle
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import transaction
from django.utils import timezone

from stoker import job
from stoker.conf import settings_for
from stoker.dead_letters import requeue
from stoker.exceptions import LeaseLost, NotInJob, NotSerializable
from stoker.jobs.execute import Executor
from stoker.locks.sweep import Leftovers
from stoker.models import Claimed, DeadLetter, Job, Note
from stoker.models.note import UNKNOWN_SECONDS, ProgressReport
from stoker.testing import drain

from tests.app import noting
from tests.integration.work import claim, work_off

pytestmark = pytest.mark.django_db(transaction=True)


class TestOutsideOfAJob:
    def test_it_says_so(self) -> None:
        assert not job.is_running
        for use in (lambda: job.id, lambda: job.last_checkpoint, lambda: job.progress(1)):
            with pytest.raises(NotInJob, match="No job runs here"):
                use()


class TestCheckpoint:
    def test_the_next_attempt_begins_where_the_last_one_was(self) -> None:
        result = noting.add_up.enqueue([1, 2, 3, 4], fails_at=[2, 3])
        drain(include_deferred=True)
        result.refresh()
        assert (result.attempts, result.return_value) == (3, [10, [[0, 2], [2, 3], [3, 4]]])

    def test_a_dead_letter_that_is_sent_again_begins_with_it(self) -> None:
        noting.add_up.using(max_attempts=1).enqueue([1, 2, 3], fails_at=[1])
        drain()
        answer = requeue(DeadLetter.objects.get().pk)
        drain()
        again = noting.add_up.get_result(str(answer.job_id))
        assert again.return_value == [6, [[0, 1], [1, 3]]]

    def test_within_a_transaction_it_is_part_of_that(self) -> None:
        result = noting.roll_back.enqueue()
        drain()
        result.refresh()
        assert result.return_value == "kept"

    def test_what_cannot_be_serialised_is_refused(self) -> None:
        result = noting.note_an_object.enqueue()
        drain()
        result.refresh()
        assert NotSerializable.__name__ in result.errors[0].exception_class_path
        assert Note.objects.count() == 0

    def test_in_a_coroutine(self) -> None:
        result = noting.note_async.enqueue()
        drain()
        result.refresh()
        assert result.return_value == [None, {"page": 7}]
        assert result.progress == ProgressReport(1, 2, "half")

    def test_who_has_lost_the_lease_notes_nothing(self) -> None:
        noting.add_up.enqueue([1, 2])
        (delivery,) = claim()
        Claimed.objects.update(lease_id=5)
        attempted = Executor(settings_for(), worker_id="w").run(delivery)
        assert LeaseLost.__name__ in attempted.outcome.fault.exception_class  # type: ignore[union-attr] # it failed
        assert Note.objects.count() == 0


class TestProgress:
    def test_it_is_seen_while_the_job_runs_and_for_a_while_after_it(self) -> None:
        result = noting.look_at_itself.enqueue()
        assert result.progress is None
        work_off()
        result.refresh()
        assert result.return_value == [1, 4, "first"]
        assert result.progress == ProgressReport(4, 4, "done")

    def test_hurried_reports_are_left_out_but_for_the_last(self) -> None:
        result = noting.count_quickly.enqueue(1000)
        with transaction.atomic():
            work_off()
        assert result.progress == ProgressReport(1000, 1000, "")

    @pytest.mark.parametrize(
        ("report", "fraction"),
        [
            (ProgressReport(1, 4, ""), 0.25),
            (ProgressReport(5, 4, ""), 1),
            (ProgressReport(-1, 4, ""), 0),
            (ProgressReport(1, None, ""), None),
            (ProgressReport(1, 0, ""), None),
        ],
    )
    def test_fraction(self, report: ProgressReport, fraction: float | None) -> None:
        assert report.fraction == fraction

    @pytest.mark.parametrize("done", [float("nan"), float("inf"), 10**400, "a", None])
    def test_what_is_no_number_is_told(self, done: Any) -> None:
        result = noting.say.enqueue("done", pickled(done))
        drain()
        result.refresh()
        assert "ValueError: job.progress: done is" in result.errors[0].traceback

    @pytest.mark.parametrize(
        ("message", "kept"),
        [("a\x00b", "a\\x00b"), ("a\ud800", "a\\ud800"), (None, ""), ("é" * 300, "é" * 255)],
    )
    def test_any_message_can_be_kept(self, message: Any, kept: str) -> None:
        result = noting.say.enqueue("message", pickled(message))
        drain()
        assert result.progress == ProgressReport(1, None, kept)


def pickled(value: object) -> str:
    """As an argument that says what JSON cannot."""
    return pickle.dumps(value).hex()


class TestForgetting:
    def test_upkeep_leaves_the_progress_of_a_job_that_has_just_ended(self) -> None:
        result = noting.look_at_itself.enqueue()
        work_off()
        assert Leftovers("default", lambda: None).forget_notes() == 0
        assert result.progress == ProgressReport(4, 4, "done")

    def test_notes_go_with_their_jobs_but_stay_with_open_dead_letters(self) -> None:
        noting.add_up.enqueue([1, 2])
        failed = noting.add_up.using(max_attempts=1).enqueue([1, 2], fails_at=[1])
        pruned = noting.add_up.enqueue([1, 2])
        drain()
        Job.objects.filter(pk=pruned.id).delete()
        waiting = noting.add_up.enqueue([1, 2])
        Note.objects.write(UUID(waiting.id), checkpoint=b"")
        assert Note.objects.count() == 4
        # Of one there is no row: as of a job that runs, and came from outside the store.
        assert Note.objects.forget(None, 9, kept_seconds=0) == (1, None)
        Note.objects.update(noted_at=timezone.now() - timedelta(seconds=UNKNOWN_SECONDS + 1))
        after, forgotten, looks = None, 0, 0
        while looks == 0 or after is not None:
            count, after = Note.objects.forget(after, 2, kept_seconds=0)
            forgotten, looks = forgotten + count, looks + 1
        assert (forgotten, looks) == (1, 2)
        assert Note.objects.forget(None, 9) == (0, None)
        left = set(Note.objects.values_list("pk", flat=True))
        assert left == {UUID(waiting.id), UUID(failed.id)}
