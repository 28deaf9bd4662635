"""The judge of the crash checker finds each kind of broken promise in a ledger."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.crash.probes import Probe, judge_delays
from tests.crash.verdict import End, Facts, Judge, Span, excused_spans, unexcused_seconds

pytestmark = pytest.mark.unit


class Story:
    """A ledger like those that users and tasks write."""

    def __init__(self) -> None:
        self.facts = Facts()
        self.ends: dict[str, End] = {}
        self.executions = 0

    def add(self, event: str, at: float, **rest: Any) -> None:
        self.facts.add([{"event": event, "at": at, "wall": at, "pid": 1, **rest}])

    def enqueue(self, token: str, outcome: str = "committed", **facts: Any) -> None:
        """Enqueue a job with the id `j-TOKEN`, committed at 1.0."""
        self.add("will", 0.8, token=token, **{"kind": "plain", **facts})
        self.add("made", 0.9, token=token, job=f"j-{token}")
        if outcome != "rolled_back":
            self.add("committing", 1.0, token=token)
        self.add(outcome, 1.1, token=token)

    def run(
        self, token: str, began: float, ended: float | None, attempt: int = 1, **facts: Any
    ) -> str:
        """Add one execution. Without an end it was cut off half a second later."""
        self.executions += 1
        nonce = f"n{self.executions}"
        job = facts.pop("job", f"j-{token}")
        self.add("started", began, nonce=nonce, job=job, attempt=attempt, token=token, **facts)
        if ended is None:
            self.add("beat", began + 0.5, nonce=nonce)
        else:
            self.add("ended", ended, nonce=nonce)
        return nonce

    def end(
        self, token: str, value: str | None, attempts: int = 1, status: str = "SUCCESSFUL"
    ) -> None:
        self.ends[f"j-{token}"] = End(True, status, attempts, value)

    def kinds(self) -> set[str]:
        return {finding.kind for finding in Judge(self.facts, self.ends).findings()}


@pytest.fixture
def story() -> Story:
    return Story()


def test_job_that_ran_once_is_good(story: Story) -> None:
    story.enqueue("a")
    story.end("a", story.run("a", 2, 3))
    assert story.kinds() == set()


def test_job_cut_off_and_run_again_is_good(story: Story) -> None:
    story.enqueue("a")
    story.run("a", 2, None)
    story.end("a", story.run("a", 4, 5, attempt=2), attempts=2)
    assert story.kinds() == set()


def test_missing_committed_job_is_lost(story: Story) -> None:
    story.enqueue("a")
    story.ends["j-a"] = End(False)
    assert story.kinds() == {"lost"}


def test_missing_job_of_an_uncertain_commit_is_good(story: Story) -> None:
    story.enqueue("a", outcome="unsure")
    story.ends["j-a"] = End(False)
    assert story.kinds() == set()


def test_job_that_never_ends_is_lost(story: Story) -> None:
    story.enqueue("a")
    story.run("a", 2, None)
    story.end("a", None, status="RUNNING")
    assert story.kinds() == {"lost"}


def test_success_without_a_finished_execution_is_lost(story: Story) -> None:
    story.enqueue("a")
    story.run("a", 2, None)
    story.end("a", "n1")
    assert story.kinds() == {"lost"}


def test_dead_letter_of_a_job_with_attempts_left_is_lost(story: Story) -> None:
    story.enqueue("a")
    story.run("a", 2, None)
    story.end("a", None, status="FAILED")
    assert story.kinds() == {"lost"}


def test_job_run_before_its_commit_is_early(story: Story) -> None:
    story.enqueue("a")
    story.end("a", story.run("a", 0.95, 3))
    assert story.kinds() == {"early"}


def test_job_run_before_its_run_after_is_early(story: Story) -> None:
    story.enqueue("a", not_before=2.5)
    story.end("a", story.run("a", 2, 3))
    assert story.kinds() == {"early"}


def test_rolled_back_job_that_runs_is_early(story: Story) -> None:
    story.enqueue("a", outcome="rolled_back")
    story.end("a", story.run("a", 2, 3))
    assert story.kinds() == {"early"}


def test_attempt_that_runs_twice_is_miscounted(story: Story) -> None:
    story.enqueue("a")
    story.run("a", 2, 3)
    story.end("a", story.run("a", 4, 5), attempts=1)
    assert story.kinds() == {"miscounted"}


def test_interrupted_attempt_that_runs_again_is_good(story: Story) -> None:
    story.enqueue("a")
    story.add("interrupted", 2.5, nonce=story.run("a", 2, None))
    story.end("a", story.run("a", 4, 5), attempts=1)
    assert story.kinds() == set()


def test_attempt_cut_off_by_its_cluster_that_runs_again_is_good(story: Story) -> None:
    story.enqueue("a")
    story.run("a", 2, None)
    story.end("a", story.run("a", 4, 5), attempts=1)
    assert story.kinds() == set()


def test_attempt_whose_worker_was_stopped_before_it_returned_may_run_again(story: Story) -> None:
    story.enqueue("a")
    story.run("a", 2, 3)
    story.end("a", story.run("a", 14, 15), attempts=1)
    assert not list(Judge(story.facts, story.ends, stopped={1: [3.01]}).findings())
    late = Judge(story.facts, story.ends, stopped={1: [2.5, 4.0]}).findings()
    assert {finding.kind for finding in late} == {"miscounted"}


def test_killed_attempt_that_runs_again_is_miscounted(story: Story) -> None:
    story.enqueue("a")
    story.run("a", 2, None)
    story.end("a", story.run("a", 4, 5), attempts=1)
    findings = Judge(story.facts, story.ends, killed={1: 3.0}).findings()
    assert {finding.kind for finding in findings} == {"miscounted"}


def test_kill_of_an_earlier_process_with_the_same_id_does_not_count(story: Story) -> None:
    story.enqueue("a")
    story.run("a", 102, None)
    story.end("a", story.run("a", 104, 105), attempts=1)
    assert not list(Judge(story.facts, story.ends, killed={1: 3.0}).findings())


def test_attempt_that_never_started_is_counted_apart(story: Story) -> None:
    story.enqueue("a")
    story.end("a", story.run("a", 4, 5, attempt=2), attempts=2)
    judge = Judge(story.facts, story.ends)
    assert not list(judge.findings())
    assert judge.phantoms == {"plain": 1}


def test_job_that_runs_after_its_recorded_attempt_is_doubled(story: Story) -> None:
    story.enqueue("a")
    recorded = story.run("a", 2, 3)
    story.run("a", 4, 5, attempt=2)
    story.end("a", recorded, attempts=2)
    assert story.kinds() == {"doubled"}


def test_job_that_runs_after_it_was_seen_to_end_is_doubled(story: Story) -> None:
    story.enqueue("a")
    story.run("a", 2, 3)
    story.add("seen_ended", 3.5, job="j-a")
    story.end("a", story.run("a", 4, 5, attempt=2), attempts=2)
    assert story.kinds() == {"doubled"}


def test_one_enqueue_with_two_jobs_is_doubled(story: Story) -> None:
    story.enqueue("a")
    story.end("a", story.run("a", 2, 3))
    story.run("a", 2, 3, job="j-other")
    assert story.kinds() == {"doubled"}


def test_cancelled_job_that_runs_is_doubled(story: Story) -> None:
    story.enqueue("a", kind="cancelled")
    story.add("cancelled", 1.5, token="a")
    story.run("a", 2, 3)
    story.end("a", None, status="CANCELLED")
    assert story.kinds() == {"doubled"}


def test_concurrent_attempts_of_one_job_are_overlapping(story: Story) -> None:
    story.enqueue("a")
    story.run("a", 2, None)
    story.end("a", story.run("a", 2.4, 5, attempt=2), attempts=2)
    assert story.kinds() == {"overlapping"}


@pytest.mark.parametrize(("guard", "places"), [("lock", 1), ("limit", 2), ("unique", 1)])
def test_more_holders_than_places_are_overlapping(story: Story, guard: str, places: int) -> None:
    for number in range(places + 1):
        story.enqueue(str(number))
        story.end(str(number), story.run(str(number), 2 + number / 10, 4, **{guard: "key"}))
    assert story.kinds() == {"overlapping"}


def test_as_many_holders_as_places_are_good(story: Story) -> None:
    for number in range(2):
        story.enqueue(str(number))
        story.end(str(number), story.run(str(number), 2 + number / 10, 4, limit="key"))
    assert story.kinds() == set()


def test_step_that_begins_before_the_previous_ended_is_early(story: Story) -> None:
    story.enqueue("a", kind="workflow")
    for number, began in enumerate((2.0, 2.5, 4.0)):
        story.run(f"a/{number}", began, began + 1)
    assert story.kinds() == {"early"}


def test_later_job_of_a_sequence_that_starts_first_is_early(story: Story) -> None:
    for number, began in enumerate((4.0, 2.0)):
        token = str(number)
        story.enqueue(token, kind="sequenced")
        story.facts.enqueued[token].facts["at"] = float(number)
        story.end(token, story.run(token, began, began + 1, sequence="key"))
    assert story.kinds() == {"early"}


def test_tick_with_two_jobs_is_found(story: Story) -> None:
    for job in ("x", "y"):
        story.run("", 2, 3, job=job, schedule="each second", moment="12:00:00")
    assert story.kinds() == {"ticks"}


def test_only_times_without_a_working_cluster_are_excused() -> None:
    impairments = [(0, 1.0, 5.0), (1, 3.0, 7.0), (None, 8.0, 9.0)]
    assert excused_spans(impairments, 2) == [Span(3.0, 5.0), Span(8.0, 9.0)]
    assert excused_spans([(0, 1.0, math.inf)], 1) == [Span(1.0)]


def test_excused_times_are_left_out_of_a_delay() -> None:
    assert unexcused_seconds(0.0, 10.0, [Span(3.0, 5.0), Span(8.0)]) == 6.0


def test_probe_that_waits_too_long_is_a_stall(story: Story) -> None:
    probes = []
    for number, began in enumerate((1.0, 2.0, 30.0)):
        token = f"probe.{number}"
        story.run(token, began, began + 0.01)
        probes.append(Probe(token, f"j-{token}", min(began, 3.0), began + 0.1))
    found = judge_delays(probes, story.facts, [], 31.0, 12.0).findings
    assert [finding.kind for finding in found] == ["stalled"]
    assert not judge_delays(probes, story.facts, [Span(4.0, 25.0)], 31.0, 12.0).findings


def test_messages_held_back_by_the_broker_are_no_stall(story: Story) -> None:
    """A killed cluster had received the message, and no other message waits meanwhile."""
    story.run("probe.0", 2.0, 2.01)
    story.run("probe.1", 32.0, 32.01)
    probes = [
        Probe(f"probe.{n}", f"j-probe.{n}", 1.0 + n / 2, recorded)
        for n, recorded in enumerate((2.1, 32.1))
    ]
    assert not judge_delays(probes, story.facts, [], 33.0, 12.0, 30.0).findings
    new = [Probe(f"probe.{n}", f"j-probe.{n}", float(n), None) for n in range(3, 6)]
    found = judge_delays([*probes, *new], story.facts, [], 33.0, 12.0, 30.0).findings
    assert [finding.kind for finding in found] == ["stalled"]
