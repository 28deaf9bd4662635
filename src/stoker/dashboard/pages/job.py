"""One job: its timeline, errors, arguments and return value."""

from __future__ import annotations

from uuid import UUID

from stoker.dashboard.context import DashboardContext
from stoker.dashboard.views import PageContent, page
from stoker.jobs.states import JobState
from stoker.operations.details import REVEAL
from stoker.operations.jobs import details_of
from stoker.operations.waiting_jobs import IN_BULK, PERMISSION
from stoker.why import why

WAITING = (JobState.READY, JobState.DEFERRED, JobState.BLOCKED)


@page("stoker.view_job")
def show(visit: DashboardContext, job_id: UUID) -> PageContent:
    """Return the job as it is now."""
    details = details_of(visit.settings, job_id, reveal=visit.may(REVEAL))
    errors = [one for one in details.life.moments if one.attempt is not None]
    moments = [
        {
            "is": one,
            "title": one.kind.label,
            "colour": colour,
            "is_newest_error": one in errors[-1:],
        }
        for one, colour in zip(details.life.moments, details.colours, strict=True)
    ]
    answer = None
    if not details.is_over:
        answer = why(visit.settings, job_id, details.progress, details.row)
    context = {
        "details": details,
        "task": details.life.task,
        "state": details.progress.state.value,
        "why": answer,
        "waits": details.progress.state in WAITING,
        "changes": IN_BULK if visit.may(PERMISSION) else (),
        "moments": moments,
        **details.call,
    }
    return PageContent("job", context)
