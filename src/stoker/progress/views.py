"""A view that shows the state and progress of one job at a signed URL.

A page shows it with ``{% job_progress result %}``. The URL contains the job and, if a user was
signed in, the user. It shows no other job, and only that user can read it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from django.core import signing
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.urls import NoReverseMatch, reverse
from django.views.decorators.http import require_safe

from stoker.compat import TaskResultDoesNotExist
from stoker.conf import settings_for
from stoker.exceptions import BrokerUnavailable
from stoker.jobs.states import JobState, progress_of_one
from stoker.models import Note
from stoker.models.note import ProgressReport
from stoker.store.engines.sessions import explained
from stoker.store.transactions import without_request_transaction

APP = "stoker-progress"
SALT = "stoker.progress"
ADDRESS_AGE = timedelta(days=7)
"""URLs older than this show nothing. Reloading the page that contains the tag creates a new one."""
FINISHED = frozenset((JobState.SUCCESSFUL, JobState.FAILED, JobState.CANCELLED))
FINISHED_EVENT = "stoker:finished"
"""The event that htmx sends to the page when the job has ended."""
NOT_INCLUDED = (
    "{% job_progress %} needs its view: add "
    'path("progress/", include("stoker.progress.urls")) to the urlpatterns of your project.'
)
Seen = tuple[JobState | None, ProgressReport | None]
"""State and last progress report of a job. (None, None) if the job is unknown."""


class Subject(NamedTuple):
    """The content of a signed URL: the job to show, and the user who may see it."""

    backend: str
    job_id: str
    user: str
    """Primary key of the only user with access; "" = every user with the URL."""
    every: float
    """Interval, in seconds, at which the page fetches the progress again."""


def address_of(subject: Subject) -> str:
    """Return the signed URL.

    Raises:
        ImproperlyConfigured: the project's URLs do not include ``stoker.progress.urls``.
    """
    token = signing.dumps(list(subject), salt=SALT)
    try:
        return reverse(f"{APP}:show", args=[token])
    except NoReverseMatch as error:
        raise ImproperlyConfigured(NOT_INCLUDED) from error


def name_of_user(request: HttpRequest | None) -> str:
    """Return the primary key of the signed-in user, or ""."""
    user = getattr(request, "user", None)
    return str(user.pk) if user is not None and user.is_authenticated else ""


def look_at(backend: str, job_id: str) -> Seen:
    """Return the state and the last progress report of a job.

    Raises:
        BrokerUnavailable: the store or the broker cannot be reached.
    """
    settings = settings_for(backend)
    try:
        state = progress_of_one(settings, UUID(job_id)).state
    except (TaskResultDoesNotExist, ValueError):
        return None, None
    with explained(settings.database):
        return state, Note.objects.using(settings.database).report_of(UUID(job_id))


def context_of(
    state: JobState | None, report: ProgressReport | None, address: str, every: float
) -> dict[str, Any]:
    """Return the context of the template of a job's progress."""
    return {
        "state": state.value if state is not None else "UNKNOWN",
        "report": report,
        "percent": _percent(state, report),
        "is_finished": state is None or state in FINISHED,
        "address": address,
        "every": f"{every:g}",
    }


def _percent(state: JobState | None, report: ProgressReport | None) -> int | None:
    if state == JobState.SUCCESSFUL:
        return 100
    if report is None or report.fraction is None:
        return None
    return int(report.fraction * 100)


@without_request_transaction
@require_safe
def show(request: HttpRequest, token: str) -> HttpResponse:
    """Show the progress of a job: an HTML fragment for htmx, a complete page for a browser."""
    is_part = "HX-Request" in request.headers
    subject = _opened(token)
    is_allowed = subject is not None and subject.user in ("", name_of_user(request))
    context, status = context_of(None, None, "", 0), 403
    if subject is not None and is_allowed:
        try:
            state, report = look_at(subject.backend, subject.job_id)
        except BrokerUnavailable:
            # htmx changes nothing after a 204, and asks again.
            return HttpResponse(status=204 if is_part else 503)
        context = context_of(state, report, request.path, subject.every)
        status = 404 if state is None else 200
    # htmx would ignore an error's content, and go on asking.
    response = HttpResponse(
        render_to_string(
            f"stoker/progress{'' if is_part else '_page'}.html", context, request=request
        ),
        status=200 if is_part else status,
    )
    if is_part and context["is_finished"]:
        response.headers["HX-Trigger"] = FINISHED_EVENT
    response.headers["Cache-Control"] = "no-store"
    response.headers["Vary"] = "HX-Request"
    return response


def _opened(token: str) -> Subject | None:
    try:
        return Subject(*signing.loads(token, salt=SALT, max_age=ADDRESS_AGE))
    except signing.BadSignature:
        return None
