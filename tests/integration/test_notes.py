"""What a job notes while it runs: a checkpoint for its next attempt, and its progress."""

import pickle
import time
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
from stoker.jobs.outcomes import CLUSTER_GONE, Attempted
from stoker.jobs.record import finish
from stoker.locks.sweep import Leftovers
from stoker.models import Claimed, DeadLetter, Job, Note
from stoker.models.note import UNKNOWN_SECONDS, ProgressReport
from stoker.testing import drain

from tests.app import noting
from tests.integration.fronted import fronted_broker, rescue
from tests.integration.work import claim, work_off, work_off_when_due

pytestmark = pytest.mark.django_db(transaction=True)


class TestOutsideOfAJob:
    def test_job_attributes_raise_not_in_job(self) -> None:
        assert not job.is_running
        for use in (lambda: job.id, lambda: job.last_checkpoint, lambda: job.progress(1)):
            with pytest.raises(NotInJob, match="No job is running here"):
                use()


class TestCheckpoint:
    def test_next_attempt_starts_from_the_checkpoint(self) -> None:
        result = noting.add_up.enqueue([1, 2, 3, 4], fails_at=[2, 3])
        drain(include_deferred=True)
        result.refresh()
        assert (result.attempts, result.return_value) == (3, [10, [[0, 2], [2, 3], [3, 4]]])

    def test_requeued_dead_letter_starts_from_the_checkpoint(self) -> None:
        noting.add_up.using(max_attempts=1).enqueue([1, 2, 3], fails_at=[1])
        drain()
        answer = requeue(DeadLetter.objects.get().pk)
        drain()
        again = noting.add_up.get_result(str(answer.job_id))
        assert again.return_value == [6, [[0, 1], [1, 3]]]

    def test_checkpoint_rolls_back_with_its_transaction(self) -> None:
        result = noting.roll_back.enqueue()
        drain()
        result.refresh()
        assert result.return_value == "kept"

    def test_unserializable_checkpoint_raises(self) -> None:
        result = noting.note_an_object.enqueue()
        drain()
        result.refresh()
        assert NotSerializable.__name__ in result.errors[0].exception_class_path
        assert Note.objects.count() == 0

    def test_coroutine_writes_checkpoint_and_progress(self) -> None:
        result = noting.note_async.enqueue()
        drain()
        result.refresh()
        assert result.return_value == [None, {"page": 7}]
        assert result.progress == ProgressReport(1, 2, "half")

    def test_holder_of_lost_lease_cannot_write_a_checkpoint(self) -> None:
        noting.add_up.enqueue([1, 2])
        (delivery,) = claim()
        Claimed.objects.update(lease_id=5)
        attempted = Executor(settings_for(), worker_id="w").run(delivery)
        assert LeaseLost.__name__ in attempted.outcome.fault.exception_class  # type: ignore[union-attr] # it failed
        assert Note.objects.count() == 0

    @pytest.mark.redis
    def test_attempt_at_a_broker_that_was_taken_over_cannot_write_a_checkpoint(self) -> None:
        """Its host was suspended for longer than a lease."""
        with fronted_broker() as broker:
            noting.add_up.enqueue([1, 2, 3, 4], fails_at=[2])
            (suspended,) = claim()
            (lost,) = rescue(broker, suspended.job_id)
            finish(settings_for(), broker, [Attempted(lost, CLUSTER_GONE, "", None, time.time())])
            work_off_when_due("newer")
            newer = Note.objects.get()
            attempted = Executor(settings_for(), worker_id="w").run(suspended)
        assert LeaseLost.__name__ in attempted.outcome.fault.exception_class  # type: ignore[union-attr] # it failed
        assert Note.objects.get().checkpoint == newer.checkpoint


class TestProgress:
    def test_progress_is_readable_during_and_after_the_job(self) -> None:
        result = noting.look_at_itself.enqueue()
        assert result.progress is None
        work_off()
        result.refresh()
        assert result.return_value == [1, 4, "first"]
        assert result.progress == ProgressReport(4, 4, "done")

    def test_frequent_reports_are_skipped_except_the_last(self) -> None:
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
    def test_fraction_is_between_zero_and_one_or_none(
        self, report: ProgressReport, fraction: float | None
    ) -> None:
        assert report.fraction == fraction

    @pytest.mark.parametrize("done", [float("nan"), float("inf"), 10**400, "a", None])
    def test_progress_that_is_no_number_raises_value_error(self, done: Any) -> None:
        result = noting.say.enqueue("done", pickled(done))
        drain()
        result.refresh()
        assert "ValueError: job.progress: done is" in result.errors[0].traceback

    @pytest.mark.parametrize(
        ("message", "kept"),
        [("a\x00b", "a\\x00b"), ("a\ud800", "a\\ud800"), (None, ""), ("é" * 300, "é" * 255)],
    )
    def test_message_is_escaped_and_cut(self, message: Any, kept: str) -> None:
        result = noting.say.enqueue("message", pickled(message))
        drain()
        assert result.progress == ProgressReport(1, None, kept)


def pickled(value: object) -> str:
    """Return the value as text: JSON arguments cannot hold it."""
    return pickle.dumps(value).hex()


class TestUpkeep:
    def test_progress_of_a_job_just_ended_is_kept(self) -> None:
        result = noting.look_at_itself.enqueue()
        work_off()
        assert Leftovers("default", lambda: None).forget_notes() == 0
        assert result.progress == ProgressReport(4, 4, "done")

    def test_notes_are_deleted_with_their_jobs_but_not_with_open_dead_letters(self) -> None:
        noting.add_up.enqueue([1, 2])
        failed = noting.add_up.using(max_attempts=1).enqueue([1, 2], fails_at=[1])
        pruned = noting.add_up.enqueue([1, 2])
        drain()
        Job.objects.filter(pk=pruned.id).delete()
        waiting = noting.add_up.enqueue([1, 2])
        Note.objects.write(UUID(waiting.id), checkpoint=b"")
        assert Note.objects.count() == 4
        # One job has no row, as a running job of a broker outside the database.
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
