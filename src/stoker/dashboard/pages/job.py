"""One job: its life, its errors, what it was given and what it gave; cancelled or run again."""

from __future__ import annotations

from pprint import pformat
from typing import Any
from uuid import UUID

from stoker.dashboard.request_context import Visit
from stoker.dashboard.views import Done, Page, Refusal, action, page
from stoker.dead_letters.requeueing import run_again
from stoker.exceptions import PackageError
from stoker.inspect.timeline import Moment, MomentKind, row_of, timeline
from stoker.jobs.package import Package
from stoker.jobs.results import fetch, result_of
from stoker.jobs.states import JobState, Progress, explained, package_of, progress_of_one
from stoker.models import DeadLetter
from stoker.values.ids import parse_job_id
from stoker.why import why

LONGEST_SHOWN = 20_000
WIDTH = 100
COLOURS = {
    MomentKind.ATTEMPT_FAILED: "bad",
    MomentKind.ATTEMPT_TIMED_OUT: "bad",
    MomentKind.ATTEMPT_CRASHED: "bad",
    MomentKind.FAILED: "bad",
    MomentKind.DEAD_LETTERED: "bad",
    MomentKind.SUCCEEDED: "good",
    MomentKind.RESOLVED: "good",
    MomentKind.RUNS: "wait",
    MomentKind.ATTEMPT_BEGAN: "wait",
}


@page("stoker.view_job")
def show(visit: Visit, job_id: UUID) -> Page:
    """The job as it is now."""
    progress = progress_of_one(visit.settings, job_id)
    job, package = progress.job, package_of(visit.settings, progress.job)
    with explained(visit.database):
        row = row_of(visit.settings, job_id, progress.state)
    life = timeline(visit.settings, job_id, progress, row)
    is_over = progress.state in (JobState.SUCCESSFUL, JobState.FAILED, JobState.CANCELLED)
    errors = [one for one in life.moments if one.attempt is not None]
    moments = [_shown(one, errors[-1:]) for one in life.moments]
    letter_ids = [one.dead_letter_id for one in life.moments if one.dead_letter_id is not None]
    context = {
        "job_id": job_id,
        "job": job,
        "task": life.task,
        "state": progress.state.value,
        "attempts": progress.attempts,
        "most_attempts": package.options.max_attempts if package is not None else None,
        "started_at": progress.started_at,
        "is_over": is_over,
        "why": None if is_over else why(visit.settings, job_id, progress, row),
        "is_readable": package is not None or job is None,
        "moments": moments,
        "args": [shown(value) for value in package.args] if package is not None else [],
        "kwargs": _kwargs(package),
        "value": _value(visit, job_id, progress),
        "letter": _open_letter(visit, letter_ids) if letter_ids else None,
    }
    return Page("job", context)


@action("stoker.cancel_job")
def cancel(visit: Visit) -> Done:
    """Withdraw it where it waits, or have it ended where it runs."""
    job_id, because = _job_id(visit), visit.request.POST.get("because", "").strip()
    reason = f"cancelled by {visit.by}" + (f": {because}" if because else "")
    result = fetch(visit.settings, str(job_id))
    if not result.cancel(reason[:255]):
        return Done("It had ended already, so there was nothing to cancel.", is_bad=True)
    if result.state == JobState.RUNNING:
        return Done("It was told to end. That takes a moment.")
    return Done("Cancelled.")


@action("stoker.add_job")
def rerun(visit: Visit) -> Done:
    """Make a new job with the same arguments."""
    again = run_again(visit.settings, _job_id(visit))
    to = visit.at("job", again.result.id) if again.result is not None else ""
    if again.because:
        return Done(again.because, to=to, is_bad=again.result is None)
    return Done("Enqueued again with the same arguments: this is the new job.", to=to)


def shown(value: Any) -> str:
    """A value as Python would write it, of bearable length."""
    text = pformat(value, width=WIDTH, sort_dicts=False)
    if len(text) <= LONGEST_SHOWN:
        return text
    return f"{text[:LONGEST_SHOWN]}\N{HORIZONTAL ELLIPSIS} ({len(text):,} characters)"


def _shown(moment: Moment, newest_error: list[Moment]) -> dict[str, Any]:
    return {
        "is": moment,
        "title": moment.kind.label,
        "colour": COLOURS.get(moment.kind, ""),
        "is_newest_error": moment in newest_error,
    }


def _kwargs(package: Package | None) -> list[tuple[str, str]]:
    if package is None:
        return []
    return [(name, shown(value)) for name, value in package.kwargs.items()]


def _value(visit: Visit, job_id: UUID, progress: Progress) -> str | None:
    """What it returned; None = nothing was kept."""
    if progress.job is None or progress.job.value is None:
        return None
    try:
        return shown(result_of(visit.settings, job_id, progress).return_value)
    except (ValueError, PackageError) as error:
        return f"cannot be read here: {error}"


def _open_letter(visit: Visit, letter_ids: list[UUID]) -> DeadLetter | None:
    with explained(visit.database):
        letters = DeadLetter.objects.using(visit.database).defer("package", "traceback")
        return letters.filter(pk=letter_ids[0], state=DeadLetter.State.OPEN).first()


def _job_id(visit: Visit) -> UUID:
    job_id = parse_job_id(visit.request.POST.get("job", ""))
    if job_id is None:
        raise Refusal(400, "No job was named.")
    return job_id
