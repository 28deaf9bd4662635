"""The views of the page. The browser runs no script except htmx: see ``add_policy``."""

from collections.abc import Callable
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_POST

from .tasks import write_report


def page(request: HttpRequest) -> HttpResponse:
    """Show a button."""
    return render(request, "live/page.html")


@require_POST
def start(request: HttpRequest) -> HttpResponse:
    """Enqueue the report, and show its progress; for htmx as a part of the page."""
    template = "live/started.html" if "HX-Request" in request.headers else "live/page.html"
    return render(request, template, {"result": write_report.enqueue(5)})


def report(request: HttpRequest, job_id: UUID) -> HttpResponse:
    """Show the finished report."""
    result = write_report.get_result(str(job_id))
    text = result.return_value if result.is_finished else "The report is not written yet."
    return HttpResponse(f"<p>{text}</p>")


def add_policy(
    view: Callable[[HttpRequest], HttpResponse],
) -> Callable[[HttpRequest], HttpResponse]:
    """Allow scripts, styles and data from this site only, and no inline ones."""

    def answer(request: HttpRequest) -> HttpResponse:
        response = view(request)
        response.headers["Content-Security-Policy"] = "default-src 'self'"
        return response

    return answer
