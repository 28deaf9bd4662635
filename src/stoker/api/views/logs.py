"""The lines that jobs logged and printed."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.http import HttpRequest
from ninja import Query

from stoker.api.access import Routes
from stoker.api.filters import LogQuery
from stoker.api.shapes import LogLineShape, LogPageShape
from stoker.api.values import Backend, cursor_of, mark_of, settings_of
from stoker.jobs.states import progress_of_one
from stoker.logs.lines import VIEW, has_ended, log_page

routes = Routes(tags=["jobs"])


@routes.show("/jobs/{job_id}/logs", VIEW, LogPageShape)
def list_log_lines(
    request: HttpRequest, job_id: UUID, wanted: Query[LogQuery], backend: Backend = None
) -> Any:
    """List the lines that a job logged and printed, if the setting `LOGS` is on. To get new lines
    of a running job, ask again with `next` as `after`."""
    settings, after = settings_of(backend), mark_of(wanted.after)
    is_over = has_ended(settings, job_id)
    page = log_page(settings, job_id, after or "", wanted.limit)
    if is_over and not page.lines:
        progress_of_one(settings, job_id)  # 404 for an unknown job
    return LogPageShape(
        lines=[LogLineShape.model_validate(line) for line in page.lines],
        next=cursor_of(page.next or None),
        has_more=page.has_more,
        is_over=is_over,
    )
