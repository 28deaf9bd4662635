"""When a page is worth fetching again: a word that changes with what the pages show.

Where there is ASGI, browsers are told by server-sent events; elsewhere they ask every other second.
The word costs a dozen look-ups by index, once a second for all who look at it in this process.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from asgiref.sync import sync_to_async
from django.contrib.auth.decorators import login_not_required
from django.core.handlers.asgi import ASGIRequest
from django.db import connections
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

from stoker.conf import Settings, settings_for
from stoker.dashboard.context import SECTIONS, DashboardContext
from stoker.dashboard.views import NO_ANSWER, entered
from stoker.exceptions import StokerError
from stoker.jobs.states import explained
from stoker.store.statements import fetch

PULSE_SECONDS = 1.0
STREAM_SECONDS = 300.0
"""Then the browser asks again, so that who was signed out sees no more."""
RETRY_MS = 2000
UNKNOWN = "unknown"
"""While the store cannot be reached: the page that is fetched then says so."""


@dataclass
class _LastPulse:
    """What was seen last of one backend, for all threads."""

    word: str = ""
    until: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)


@cache
def _seen(_alias: str) -> _LastPulse:
    return _LastPulse()


def pulse(settings: Settings) -> str:
    """A word that is another one when jobs, queues, clusters or schedules have changed."""
    seen = _seen(settings.alias)
    with seen.lock:
        if time.monotonic() >= seen.until:
            seen.word = _look(settings)
            seen.until = time.monotonic() + PULSE_SECONDS / 2
        return seen.word


def _look(settings: Settings) -> str:
    try:
        with explained(settings.database):
            rows = fetch(connections[settings.database], "pulse", {})
    except StokerError:
        return UNKNOWN
    return hashlib.sha256(repr(rows).encode()).hexdigest()[:16]


@login_not_required
def live(request: HttpRequest) -> HttpResponseBase:
    """The word; or, where it is asked for as a stream of events and can be, each new one."""
    visit = entered(request)
    try:
        refusal = _refusal(visit)
    except NO_ANSWER:
        return _as_json(UNKNOWN)
    if refusal:
        return HttpResponse(refusal, status=403, content_type="text/plain")
    if "text/event-stream" not in request.headers.get("Accept", ""):
        return _as_json(pulse(visit.settings))
    if not isinstance(request, ASGIRequest):
        return HttpResponse(status=204)  # a browser that is told so does not ask for events again
    response = StreamingHttpResponse(_events(visit.alias), content_type="text/event-stream")
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Accel-Buffering"] = "no"
    response.headers["Content-Encoding"] = "identity"  # else GZipMiddleware would hold it back
    return response


def _refusal(visit: DashboardContext) -> str:
    """Why the word is not for this one; "" = it is."""
    user = getattr(visit.request, "user", None)
    if user is None or not user.is_authenticated or not user.is_active:
        return "Sign in first."
    if not any(visit.may(section.permission) for section in SECTIONS):
        return "You may see nothing here."
    return ""


def _as_json(word: str) -> HttpResponse:
    return JsonResponse({"pulse": word}, headers={"Cache-Control": "no-store"})


async def _events(alias: str) -> AsyncIterator[str]:
    until = time.monotonic() + STREAM_SECONDS
    yield f"retry: {RETRY_MS}\n\n"
    told = None
    while time.monotonic() < until:
        word = await sync_to_async(_pulse_and_close)(alias)
        # A comment now and then tells that the other side is still there.
        yield f"data: {word}\n\n" if word != told else ": still\n\n"
        told = word
        await asyncio.sleep(PULSE_SECONDS)


def _pulse_and_close(alias: str) -> str:
    """No connection is kept open for as long as somebody looks at a page."""
    settings = settings_for(alias)
    try:
        return pulse(settings)
    finally:
        connection: Any = connections[settings.database]
        if not connection.in_atomic_block:
            connection.close()
