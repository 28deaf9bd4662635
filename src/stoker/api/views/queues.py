"""Queues: seen, paused, resumed, cleared."""

from __future__ import annotations

from typing import Annotated, Any

from django.http import HttpRequest
from ninja import Path
from pydantic import ConfigDict, Field

from stoker import queues
from stoker.api.access import Routes, name_of
from stoker.api.filters import refuse_beyond_cap
from stoker.api.shapes import QueueList, Shape
from stoker.api.values import Backend, Strict, Why, settings_of
from stoker.queues import QueueDepth

routes = Routes(tags=["queues"])

QueueName = Annotated[str, Path(..., min_length=1, max_length=100)]


class Pausing(Shape):
    """Why."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    because: Why = ""


class Clearing(Pausing):
    """How many jobs are to be cancelled."""

    limit: Annotated[int, Strict, Field(ge=1, le=100_000)] = 100
    """At most so many; no more than `MAX_BULK` (1000)."""
    dry_run: Annotated[bool, Strict] = False
    """Change nothing, and tell how many there are."""


NO_REASON = Pausing()
SOME = Clearing()


class ClearedShape(Shape):
    """What became of the jobs that waited."""

    matched: int
    """How many waited, up to the limit."""
    done: int
    """How many of them were cancelled. Others had begun by then."""
    dry_run: bool


@routes.route("GET", "/queues", permissions=("stoker.view_job",), answers={200: QueueList})
def list_queues(request: HttpRequest, backend: Backend = None) -> Any:
    """The queues: how many jobs are where, whether each is paused, and by whom."""
    return {"queues": queues.list(backend=settings_of(backend).alias)}


@routes.route(
    "POST",
    "/queues/{path:queue}/pause",
    permissions=("stoker.pause_queue",),
    answers={200: QueueDepth},
    example={"because": "the provider is down"},
)
def pause_queue(
    request: HttpRequest, queue: QueueName, body: Pausing = NO_REASON, backend: Backend = None
) -> Any:
    """Let no cluster start jobs of this queue until it is resumed. What runs goes on."""
    alias = settings_of(backend).alias
    queues.pause(queue, by=name_of(request), because=body.because, backend=alias)
    return queues.get(queue, backend=alias)


@routes.route(
    "POST",
    "/queues/{path:queue}/resume",
    permissions=("stoker.pause_queue",),
    answers={200: QueueDepth},
)
def resume_queue(request: HttpRequest, queue: QueueName, backend: Backend = None) -> Any:
    """Let the jobs of this queue be started again."""
    alias = settings_of(backend).alias
    queues.resume(queue, backend=alias)
    return queues.get(queue, backend=alias)


@routes.route(
    "POST",
    "/queues/{path:queue}/clear",
    permissions=("stoker.clear_queue",),
    answers={200: ClearedShape},
    example={"limit": 100, "dry_run": True},
)
def clear_queue(
    request: HttpRequest, queue: QueueName, body: Clearing = SOME, backend: Backend = None
) -> Any:
    """Cancel the jobs that wait in this queue. Those that run go on."""
    refuse_beyond_cap(body.limit)
    cleared = queues.clear(
        queue,
        by=name_of(request),
        because=body.because,
        limit=body.limit,
        dry_run=body.dry_run,
        backend=settings_of(backend).alias,
    )
    return {"matched": cleared.matched, "done": cleared.done, "dry_run": body.dry_run}


# Last: a name may have slashes in it, and so be what the others end with.
@routes.route(
    "GET", "/queues/{path:queue}", permissions=("stoker.view_job",), answers={200: QueueDepth}
)
def get_queue(request: HttpRequest, queue: QueueName, backend: Backend = None) -> Any:
    """One queue."""
    return queues.get(queue, backend=settings_of(backend).alias)
