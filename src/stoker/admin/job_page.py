"""What the page of one job shows."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from stoker.exceptions import PackageError
from stoker.models import Step
from stoker.package import Package
from stoker.progress import Progress, package_of
from stoker.results import result_of
from stoker.timeline import Moment, MomentKind, Timeline, timeline

from .visit import Visit
from .words import ago, duration, shown, shown_moment

MOST_STEPS = 60
NOT_YET = (Step.State.HELD, Step.State.PENDING)
GOOD = (MomentKind.SUCCEEDED, MomentKind.RESOLVED)
BAD = (
    MomentKind.ATTEMPT_FAILED,
    MomentKind.ATTEMPT_TIMED_OUT,
    MomentKind.ATTEMPT_CRASHED,
    MomentKind.FAILED,
    MomentKind.DEAD_LETTERED,
)


def job_context(visit: Visit, job_id: UUID, progress: Progress) -> dict[str, Any]:
    """For the template."""
    job, package = progress.job, package_of(visit.settings, progress.job)
    life = timeline(visit.settings, job_id, progress)
    return {
        "title": life.task or str(job_id),
        "job_id": job_id,
        "job": job,
        "state": progress.state.value,
        "facts": _facts(progress, package),
        "moments": [_moment(visit, one) for one in life.moments],
        "args": None if package is None else [shown(value) for value in package.args],
        "kwargs": {} if package is None else {k: shown(v) for k, v in package.kwargs.items()},
        "value": _value(visit, job_id, progress),
        "failures": list(reversed(progress.failures)),
        "steps": _steps(visit, life.moments, job_id),
        "letter_url": _letter_url(visit, life.moments),
        "has_letter": _has_letter(life),
    }


def _facts(progress: Progress, package: Package | None) -> list[tuple[str, str]]:
    job = progress.job
    if job is None:
        return [("kept by", "its broker alone, until it has ended")]
    most = f" of at most {package.options.max_attempts}" if package is not None else ""
    facts = [
        ("queue", job.queue),
        ("priority", str(job.priority)),
        ("enqueued", f"{shown_moment(job.enqueued_at)}, {ago(job.enqueued_at)}"),
        ("attempts", f"{progress.attempts}{most}"),
    ]
    if job.run_after is not None:
        facts.append(("not before", shown_moment(job.run_after)))
    if job.finished_at is not None:
        facts.append(("finished", f"{shown_moment(job.finished_at)}, {ago(job.finished_at)}"))
    if job.worker_id:
        facts.append(("worker", job.worker_id))
    if job.reason:
        facts.append(("reason", job.reason))
    if package is not None and package.options.identity:
        facts.append(("unique key", package.options.identity.rpartition(" ")[0]))
    return facts


def _moment(visit: Visit, moment: Moment) -> dict[str, Any]:
    colour = "good" if moment.kind in GOOD else "bad" if moment.kind in BAD else ""
    links = []
    if moment.job_id is not None:
        links.append((f"job {moment.job_id}", visit.at("job_change", moment.job_id)))
    if moment.dead_letter_id is not None:
        links.append(("dead letter", visit.at("deadletter_change", moment.dead_letter_id)))
    return {
        "title": moment.kind.label,
        "number": moment.number,
        "at": shown_moment(moment.at) if moment.at else "",
        "is_now": moment.is_now,
        "until": f"until {shown_moment(moment.until)}, {ago(moment.until)}" if moment.until else "",
        "took": f"took {duration(moment.seconds)}" if moment.seconds is not None else "",
        "text": moment.text,
        "by": moment.by,
        "worker": moment.worker_id,
        "links": links,
        "colour": "wait" if moment.is_now else colour,
    }


def _value(visit: Visit, job_id: UUID, progress: Progress) -> str | None:
    """What it returned; None = nothing was kept."""
    if progress.job is None or progress.job.value is None:
        return None
    try:
        return shown(result_of(visit.settings, job_id, progress).return_value)
    except (ValueError, PackageError) as error:
        return f"cannot be read here: {error}"


def _steps(visit: Visit, moments: Any, job_id: UUID) -> list[dict[str, Any]]:
    """The first steps of its workflow."""
    workflow_id = next((one.workflow_id for one in moments if one.workflow_id is not None), None)
    if workflow_id is None:
        return []
    steps = Step.objects.using(visit.database).filter(workflow_id=workflow_id)
    tasks = steps.filter(kind=Step.Kind.TASK).defer("sealed", "value")
    rows = list(tasks.order_by("pk")[:MOST_STEPS])
    return [
        {
            "label": row.label,
            "role": row.role,
            "state": row.state,
            "is_this": row.job_id == job_id,
            "url": visit.at("job_change", row.job_id) if row.state not in NOT_YET else "",
        }
        for row in rows
    ]


def _has_letter(life: Timeline) -> bool:
    """Whether its dead letter is to be seen to still."""
    kinds = {one.kind for one in life.moments}
    closed = {MomentKind.RESOLVED, MomentKind.DISCARDED}
    return MomentKind.DEAD_LETTERED in kinds and not kinds & closed


def _letter_url(visit: Visit, moments: Any) -> str:
    letter_id = next((one.dead_letter_id for one in moments if one.dead_letter_id), None)
    return "" if letter_id is None else visit.at("deadletter_change", letter_id)
