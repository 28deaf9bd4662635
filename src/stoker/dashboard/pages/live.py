"""A digest that changes when the content of the pages changes, so that scripts fetch them again.

With ASGI, browsers receive it by server-sent events; otherwise they poll every two seconds. It
costs a dozen index look-ups per second, however many browsers this process serves.
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
from stoker.dashboard.views import NO_ANSWER, entered
from stoker.exceptions import StokerError
from stoker.store.engines import engine_of
from stoker.store.engines.sessions import explained

PULSE_SECONDS = 1.0
STREAM_SECONDS = 300.0
"""Maximum duration of a stream. After that the browser connects again, and its session is checked
again."""
RETRY_MS = 2000
LOGS = ", (SELECT max(id) FROM stoker_logchunk)"
UNKNOWN = "unknown"
"""The digest while the store is unreachable. Scripts then fetch the page, which shows the error."""


@dataclass
class _LastPulse:
    """The last digest of one backend, shared by all threads."""

    word: str = ""
    until: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)


@cache
def _seen(_alias: str) -> _LastPulse:
    return _LastPulse()


def pulse(settings: Settings) -> str:
    """Return a digest that changes with jobs, queues, clusters and schedules."""
    seen = _seen(settings.alias)
    with seen.lock:
        if time.monotonic() >= seen.until:
            seen.word = _look(settings)
            seen.until = time.monotonic() + PULSE_SECONDS / 2
        return seen.word


def _look(settings: Settings) -> str:
    try:
        with explained(settings.database):
            logs = LOGS if settings.logs is not None else ""
            rows = engine_of(settings.database).fetch("pulse", {}, logs=logs)
    except StokerError:
        return UNKNOWN
    return hashlib.sha256(repr(rows).encode()).hexdigest()[:16]


@login_not_required
def live(request: HttpRequest) -> HttpResponseBase:
    """Return the digest, or a stream of events with each new digest."""
    visit = entered(request)
    try:
        refusal = visit.refusal
    except NO_ANSWER:
        return _as_json(UNKNOWN)
    if refusal:
        return HttpResponse(refusal, status=403, content_type="text/plain")
    if "text/event-stream" not in request.headers.get("Accept", ""):
        return _as_json(pulse(visit.settings))
    if not isinstance(request, ASGIRequest):
        return HttpResponse(status=204)  # after this answer a browser does not request events again
    response = StreamingHttpResponse(_events(visit.alias), content_type="text/event-stream")
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Accel-Buffering"] = "no"
    response.headers["Content-Encoding"] = "identity"  # otherwise GZipMiddleware would buffer it
    return response


def _as_json(word: str) -> HttpResponse:
    return JsonResponse({"pulse": word}, headers={"Cache-Control": "no-store"})


async def _events(alias: str) -> AsyncIterator[str]:
    until = time.monotonic() + STREAM_SECONDS
    yield f"retry: {RETRY_MS}\n\n"
    told = None
    while time.monotonic() < until:
        word = await sync_to_async(_pulse_and_close)(alias)
        # A comment from time to time shows whether the browser is still connected.
        yield f"data: {word}\n\n" if word != told else ": still\n\n"
        told = word
        await asyncio.sleep(PULSE_SECONDS)


def _pulse_and_close(alias: str) -> str:
    """Return the digest and close the database connection, because a stream lasts for minutes."""
    settings = settings_for(alias)
    try:
        return pulse(settings)
    finally:
        connection: Any = connections[settings.database]
        if not connection.in_atomic_block:
            connection.close()
