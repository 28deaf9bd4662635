"""The view that Prometheus scrapes: closed, but for who has the token, or may look at jobs."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from .prometheus import is_token, scrape, told_backends


@never_cache
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """All numbers, as text."""
    if not told_backends():
        return _refuse(404, 'No backend of TASKS has "prometheus" under REPORTERS.')
    if not (_has_token(request) or _may_look(request)):
        return _refuse(
            403, "Send the token of REPORTERS as Authorization: Bearer, or sign in as who may see."
        )
    text, content_type = scrape(request.headers.get("Accept", ""))
    return HttpResponse(text, content_type=content_type)


def _has_token(request: HttpRequest) -> bool:
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    return scheme.lower() == "bearer" and is_token(given.strip())


def _may_look(request: HttpRequest) -> bool:
    user = getattr(request, "user", None)
    return user is not None and user.is_active and user.has_perm("stoker.view_job")


def _refuse(status: int, sentence: str) -> HttpResponse:
    return HttpResponse(f"{sentence}\n", status=status, content_type="text/plain")
