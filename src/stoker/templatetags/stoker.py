"""Tags for the templates of a project: ``{% load stoker %}``."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django import template

from stoker.jobs.results import Result
from stoker.progress.views import Seen, Subject, address_of, context_of, look_at, name_of_user

register = template.Library()


@register.inclusion_tag("stoker/progress.html", takes_context=True)
def job_progress(
    context: dict[str, Any],
    result: Result[Any] | UUID | str,
    every: float = 1,
    backend: str = "default",
) -> dict[str, Any]:
    """Show the state and progress of a job. htmx updates them until the job has ended.

    Args:
        result: what ``enqueue`` or ``get_result`` returned, or the id of a job.
        every: interval, in seconds, at which the page fetches the progress again.
        backend: the alias in ``TASKS`` of the job with this id. A result knows its own.

    Raises:
        ImproperlyConfigured: the project's URLs do not include ``stoker.progress.urls``.
        BrokerUnavailable: the store or the broker cannot be reached.
    """
    if isinstance(result, Result):
        seen: Seen = result.state, result.progress
        job_id, backend = result.id, result.backend
    else:
        job_id, seen = str(result), look_at(backend, str(result))
    user = name_of_user(context.get("request"))
    return context_of(*seen, address_of(Subject(backend, job_id, user, every)), every)
