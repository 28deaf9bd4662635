"""The list of enqueued jobs, and the assertions about it."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.db import transaction
from django.utils import timezone

from stoker.models import Job
from stoker.testing import (
    assert_enqueued,
    assert_enqueues,
    assert_not_enqueued,
    assertions,
    drain,
    enqueued,
    inline,
)

from tests.app import tasks as others
from tests.testing import tasks

pytestmark = pytest.mark.usefixtures("database")

ADD = "tests.app.tasks.add"


class TestEnqueued:
    def test_jobs_are_listed_in_order(self) -> None:
        first = others.add.enqueue(1, second=2)
        due = timezone.now() + timedelta(hours=1)
        later = tasks.note.using(queue_name="mail", priority=7, run_after=due).enqueue(("tuple",))
        add, note = enqueued()
        assert (add.id, add.task, add.args, add.kwargs) == (first.id, ADD, (1,), {"second": 2})
        assert (add.queue, add.priority, add.run_after) == ("default", 0, None)
        assert add.enqueued_at == first.enqueued_at
        assert (note.id, note.args) == (later.id, (("tuple",),))
        assert (note.queue, note.priority, note.run_after) == ("mail", 7, due)

    def test_list_is_filtered_by_task_and_queue(self) -> None:
        others.add.enqueue(1, 2)
        tasks.note.using(queue_name="mail").enqueue("x")
        assert [job.task for job in enqueued(others.add)] == [ADD]
        assert [job.task for job in enqueued(ADD)] == [ADD]
        assert [job.args for job in enqueued(queue="mail")] == [("x",)]
        assert enqueued(others.add, queue="mail") == []

    def test_ended_job_is_not_listed(self) -> None:
        tasks.note.enqueue("x")
        drain()
        assert enqueued() == []

    def test_job_waiting_for_its_next_attempt_is_listed(self) -> None:
        tasks.snooze.enqueue(60)
        drain()
        assert [job.task for job in enqueued()] == ["tests.testing.tasks.snooze"]

    def test_rolled_back_job_is_not_listed(self) -> None:
        with transaction.atomic():
            tasks.note.enqueue("x")
            transaction.set_rollback(True)
        assert enqueued() == []

    def test_package_of_another_cluster_is_left_out(self) -> None:
        tasks.note.enqueue("x")
        Job.objects.update(package=b"not ours")
        assert enqueued() == []


class TestAssertEnqueued:
    def test_matching_job_passes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # A slow machine may take its time between `due` and the enqueue.
        monkeypatch.setattr(assertions, "TOLERANCE_SECONDS", 120.0)
        due = timezone.now() + timedelta(days=1)
        others.add.enqueue(1, second=2)
        others.add.using(queue_name="mail", priority=3).enqueue(3, 4)
        tasks.note.using(run_after=timedelta(minutes=5)).enqueue("soon")
        tasks.note.using(run_after=due).enqueue("tomorrow")
        assert len(assert_enqueued(others.add)) == 2
        assert_enqueued(ADD, count=2)
        assert_enqueued(others.add, args=[1], kwargs={"second": 2}, count=1, after=0)
        assert_enqueued(others.add, args=(3, 4), kwargs={}, queue="mail", priority=3)
        (soon,) = assert_enqueued(tasks.note, after=300)
        assert soon.args == ("soon",)
        assert_enqueued(tasks.note, after=timedelta(minutes=5), count=1)
        assert_enqueued(tasks.note, after=due, count=1)
        assert_enqueued(tasks.note, after=timedelta(days=1), count=1)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"args": [1, 2]},
            {"args": [2]},
            {"kwargs": {}},
            {"kwargs": {"second": 2, "third": 3}},
            {"queue": "mail"},
            {"priority": 1},
            {"after": 60},
            {"count": 2},
            {"count": 0},
        ],
        ids=str,
    )
    def test_other_job_raises(self, wrong: dict[str, object]) -> None:
        others.add.enqueue(1, second=2)
        with pytest.raises(AssertionError):
            assert_enqueued(others.add, **wrong)  # type: ignore[arg-type] # one after another

    def test_after_must_match_the_delay(self) -> None:
        tasks.note.using(run_after=300).enqueue("soon")
        for wrong in (0, 290, timedelta(minutes=6), timezone.now() + timedelta(minutes=5)):
            with pytest.raises(AssertionError, match=r"after (300|29\d(\.\d+)?) s"):
                assert_enqueued(tasks.note, after=wrong)

    def test_message_shows_the_difference(self) -> None:
        others.add.enqueue(1, second=2)
        tasks.note.using(queue_name="mail", priority=3, run_after=60).enqueue("x" * 300)
        with pytest.raises(AssertionError) as caught:
            assert_enqueued(others.add, args=[1], kwargs={"second": 3})
        said = str(caught.value)
        assert said.splitlines()[:4] == [
            f"No job of {ADD} with args=[1], kwargs={{'second': 3}} waits.",
            "Expected (-) and enqueued (+):",
            f"- {ADD}(1, second=3)",
            "?" + " " * 31 + "^",
        ]
        assert "There are 2:" in said
        assert f"\n  {ADD}(1, second=2)\n" in said
        listed = r"tasks\.note\('x{199}\.\.\.\)  queue='mail'  priority=3  after (60|5\d(\.\d+)?) s"
        assert re.search(listed, said)

    def test_message_shows_a_wrong_count(self) -> None:
        others.add.enqueue(1, 2)
        others.add.enqueue(3, 4)
        with pytest.raises(AssertionError, match=f"2 jobs of {ADD} wait; 3 expected."):
            assert_enqueued(others.add, count=3)
        with pytest.raises(AssertionError, match=r"1 job of .* with args=\[1, 2\] waits; 2 expec"):
            assert_enqueued(others.add, args=[1, 2], count=2)

    def test_message_says_if_no_job_waits(self) -> None:
        with pytest.raises(
            AssertionError, match=f"No job of {ADD} waits.\nThere are no other jobs"
        ):
            assert_enqueued(others.add)


class TestAssertNotEnqueued:
    def test_other_jobs_pass(self) -> None:
        assert_not_enqueued(others.add)
        others.add.enqueue(1, 2)
        assert_not_enqueued(tasks.note)
        assert_not_enqueued(others.add, args=[3, 4])
        assert_not_enqueued(others.add, queue="mail")
        drain()
        assert_not_enqueued(others.add)

    def test_matching_job_raises(self) -> None:
        others.add.enqueue(1, 2)
        with pytest.raises(AssertionError, match=rf"1 job of {ADD} waits; none expected.\n.*1:\n"):
            assert_not_enqueued(others.add)
        with pytest.raises(AssertionError, match="none expected"):
            assert_not_enqueued(others.add, args=[1, 2])


class TestAssertEnqueues:
    def test_only_jobs_of_the_block_are_counted(self) -> None:
        others.add.enqueue(1, 2)
        with assert_enqueues(others.add, 1, args=[3, 4]) as jobs:
            others.add.enqueue(3, 4)
        assert [job.args for job in jobs] == [(3, 4)]
        with assert_enqueues(others.add, 0):
            tasks.note.enqueue("x")

    def test_jobs_that_ran_in_the_block_are_counted(self) -> None:
        with assert_enqueues(tasks.note, 2):
            tasks.note.enqueue("one")
            drain()
            with inline():
                tasks.note.enqueue("two")

    def test_rolled_back_jobs_are_not_counted(self) -> None:
        with assert_enqueues(tasks.note, 1), transaction.atomic():
            tasks.note.enqueue("kept")
            with transaction.atomic():
                tasks.note.enqueue("rolled back")
                transaction.set_rollback(True)

    def test_missing_or_extra_jobs_raise(self) -> None:
        with (
            pytest.raises(AssertionError, match=f"No job of {ADD} was enqueued.\nThere are 1:"),
            assert_enqueues(others.add),
        ):
            tasks.note.enqueue("x")
        with (
            pytest.raises(AssertionError, match=f"2 jobs of {ADD} were enqueued; 1 expected"),
            assert_enqueues(others.add, 1),
        ):
            others.add.enqueue_many([((1, 2), {}), ((3, 4), {})])

    def test_error_of_the_block_takes_precedence(self) -> None:
        with pytest.raises(ZeroDivisionError), assert_enqueues(others.add):
            raise ZeroDivisionError
