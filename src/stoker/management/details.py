"""Jobs and dead letters as lines, for commands."""

from __future__ import annotations

from collections.abc import Iterator

from stoker.dead_letters.search import DeadLetterPage, Stats
from stoker.dead_letters.service import Story
from stoker.inspect.timeline import Moment, MomentKind
from stoker.models import DeadLetter
from stoker.operations import dead_letters as operations
from stoker.operations.details import call_fact, lines_of
from stoker.operations.jobs import JobDetails
from stoker.operations.wording import duration, exactly, first_line
from stoker.tasks.arguments import ShownCall
from stoker.values.text import plural
from stoker.why import Answer

from .arguments import call_lines
from .subcommand import OutputLine, heading


def job_lines(found: JobDetails, answer: Answer | None = None) -> Iterator[OutputLine]:
    """Return the details of a job as lines.

    Args:
        answer: why it is not running; None = it has ended, or is not asked.
    """
    yield f"{'job':<18}{found.job_id}"
    yield f"{'state':<18}{found.progress.state.label.lower()}"
    yield from lines_of([*found.facts, call_fact(found.shown)])
    if found.value is not None:
        yield f"{'result':<18}{first_line(found.value, 300)}"
    yield heading("Life")
    for moment in found.life.moments:
        yield _moment_line(moment)
        if moment.attempt is not None and moment.attempt.traceback:
            yield moment.attempt.traceback.rstrip()
    if answer is not None and answer.needs_somebody:
        yield heading("Why it is not running")
        yield from answer_lines(answer)


def answer_lines(answer: Answer) -> Iterator[str]:
    """Return an answer of ``why`` as lines."""
    yield f"  {answer.sentence}"
    if answer.facts.get("waited"):
        yield f"  It waited {answer.facts['waited']}."
    if answer.advice:
        yield f"  {answer.advice}"


def _moment_line(moment: Moment) -> str:
    before = "" if moment.kind == MomentKind.WAITED else "after "
    after = f" {before}{duration(moment.seconds)}" if moment.seconds is not None else ""
    until = f", until {exactly(moment.until)}" if moment.until is not None else ""
    by = f", by {moment.by}" if moment.by else ""
    text = f": {first_line(moment.text, 300)}" if moment.text else ""
    when = exactly(moment.at) or ("now" if moment.is_now else "at an unknown time")
    return f"  {when}  {moment.title}{after}{until}{by}{text}"


def letter_lines(
    story: Story, call: ShownCall | None, *, all_tracebacks: bool = False
) -> Iterator[OutputLine]:
    """Return the details of a dead letter as lines."""
    yield f"dead letter   {story.letter.pk} ({story.letter.state})"
    yield from lines_of([*operations.facts_of(story.letter), call_fact(call)])
    if story.has_more:
        yield "Older attempts or requeues are not shown."
    if story.requeues:
        yield heading("Requeues")
        yield from (f"  {operations.requeue_text(one)}" for one in story.requeues)
    yield heading("Attempts")
    for attempt in story.attempts:
        yield f"  {operations.attempt_text(attempt)}"
        if all_tracebacks and attempt.traceback:
            yield attempt.traceback.rstrip()
    if not all_tracebacks:
        yield heading("Last traceback")
        yield story.letter.traceback.rstrip() or "  No traceback was recorded."


def row_lines(letter: DeadLetter, call: ShownCall | None) -> Iterator[OutputLine]:
    """Return a dead letter of a list as lines."""
    times = f", {letter.failure_count} times" if letter.failure_count > 1 else ""
    state = "" if letter.state == DeadLetter.State.OPEN else f" [{letter.state}]"
    task = letter.task or "unknown task"
    yield heading(str(letter.pk), f"  {exactly(letter.failed_at)}  {task}{state}")
    yield from call_lines(call)
    what = first_line(f"{operations.kind_of(letter)}: {letter.message}")
    yield f"  {letter.reason}{times}: {what}"


def end_of_list(page: DeadLetterPage, number: int | None) -> str:
    """Return the last line of a list: how many dead letters it has, of how many that match."""
    if number:
        return f"{len(page.letters)} of {plural(number, 'dead letter')}"
    if page.letters:
        return plural(len(page.letters), "dead letter")
    if page.is_cut and number is None:
        return "No matching dead letter among those that were searched."
    return "No dead letters."


def stats_lines(seen: Stats) -> Iterator[str]:
    """Return the statistics of dead letters as lines."""
    yield (
        f"{plural(seen.total, 'dead letter')} of {plural(seen.tasks, 'task')} in "
        f"{plural(seen.queues, 'queue')}; {plural(seen.failures, 'failure')}, "
        f"{plural(seen.requeues, 'requeue')}"
    )
    for fault in seen.faults:
        yield f"{fault.number:>7,}  {fault.task or 'unknown task'}: {fault.exception_class}"
        last = f"last {exactly(fault.failed_at)}, fingerprint {fault.fingerprint}"
        yield f"         {fault.reason}, {last}"
