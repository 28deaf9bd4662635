"""One job: its timeline, errors, arguments and return value."""

from __future__ import annotations

from uuid import UUID

from stoker.dashboard.context import DashboardContext
from stoker.dashboard.views import PageContent, page
from stoker.jobs.states import JobState
from stoker.logs.lines import VIEW, LogPage, newest_lines
from stoker.operations.details import REVEAL
from stoker.operations.jobs import details_of
from stoker.operations.tracebacks import fitting
from stoker.operations.waiting_jobs import EDIT, PERMISSION, changes_in
from stoker.why import why

NEWEST_LINES, MOST_LINES = 100, 5000
WAITING = (JobState.READY, JobState.DEFERRED, JobState.BLOCKED)


@page("stoker.view_job")
def show(visit: DashboardContext, job_id: UUID) -> PageContent:
    """Return the current state of the job."""
    details = details_of(visit.settings, job_id, reveal=visit.may(REVEAL))
    errors = [one for one in details.life.moments if one.attempt is not None][::-1]
    traces = [one.attempt.traceback for one in errors if one.attempt is not None]
    shown = errors if visit.request.GET.get("errors") == "all" else errors[: fitting(traces)]
    moments = [
        {
            "is": one,
            "colour": colour,
            "is_newest_error": one in errors[:1],
            "has_traceback": one in shown,
        }
        for one, colour in zip(details.life.moments, details.colours, strict=True)
    ]
    answer = None
    if not details.is_over:
        answer = why(visit.settings, job_id, details.progress, details.row)
    changes = changes_in(visit.settings) if visit.may(PERMISSION) else ()
    context = {
        "details": details,
        "task": details.life.task,
        "state": details.progress.state.value,
        "why": answer,
        "waits": details.progress.state in WAITING,
        # The arguments have a page of their own.
        "changes": [one for one in changes if one is not EDIT],
        "moments": moments,
        "log": _log(visit, job_id),
        **details.call,
    }
    return PageContent("job", context)


def _log(visit: DashboardContext, job_id: UUID) -> LogPage | None:
    """Return the newest lines of the job; None if none are kept, or without the permission."""
    if visit.settings.logs is None or not visit.may(VIEW):
        return None
    wants_all = visit.request.GET.get("log") == "all"
    return newest_lines(visit.settings, job_id, MOST_LINES if wants_all else NEWEST_LINES)
