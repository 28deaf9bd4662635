"""Queues: list, pause, resume, clear."""

from __future__ import annotations

from typing import Annotated, Any

from django.http import HttpRequest
from ninja import Path

from stoker import queues
from stoker.api.access import Routes, operator_of
from stoker.api.filters import NO_REASON, Clearing, ReasonBody, limit_of
from stoker.api.shapes import QueueList, Shape
from stoker.api.values import Backend, settings_of
from stoker.operations.queues import CLEAR, PAUSE, RESUME
from stoker.queues import QueueDepth

routes = Routes(tags=["queues"])

QueueName = Annotated[str, Path(..., min_length=1, max_length=100)]


SOME = Clearing()


class ClearedShape(Shape):
    """The result of clearing a queue."""

    matched: int
    """Number of jobs that waited, up to the limit."""
    done: int
    """Number of jobs that were cancelled. The others had started before."""
    not_kept: int
    """Number of cancelled jobs that were deleted at a message server. No record of them is kept."""
    dry_run: bool


@routes.show("/queues", "stoker.view_job", QueueList)
def list_queues(request: HttpRequest, backend: Backend = None) -> Any:
    """List the queues, each with its number of jobs by state and its pause."""
    return {"queues": queues.list(backend=settings_of(backend).alias)}


@routes.change(
    "/queues/{path:queue}/pause",
    PAUSE,
    QueueDepth,
    example={"because": "the provider is down"},
)
def pause_queue(
    request: HttpRequest, queue: QueueName, body: ReasonBody = NO_REASON, backend: Backend = None
) -> Any:
    """Pause a queue: no cluster starts its jobs until it is resumed. Running jobs continue."""
    operator = operator_of(request, backend, body.because)
    PAUSE.perform(operator, queue)
    return queues.get(queue, backend=operator.alias)


@routes.change("/queues/{path:queue}/resume", RESUME, QueueDepth)
def resume_queue(request: HttpRequest, queue: QueueName, backend: Backend = None) -> Any:
    """Resume a queue: its jobs are started again."""
    operator = operator_of(request, backend)
    RESUME.perform(operator, queue)
    return queues.get(queue, backend=operator.alias)


@routes.change(
    "/queues/{path:queue}/clear",
    CLEAR,
    ClearedShape,
    example={"limit": 100, "dry_run": True},
)
def clear_queue(
    request: HttpRequest, queue: QueueName, body: Clearing = SOME, backend: Backend = None
) -> Any:
    """Cancel the jobs that wait in this queue. Running jobs continue."""
    limit = limit_of(body)
    operator = operator_of(request, backend, body.because)
    cleared = CLEAR.perform(operator, queue, limit=limit, dry_run=body.dry_run).value
    return {
        "matched": cleared.matched,
        "done": cleared.done,
        "not_kept": cleared.not_kept,
        "dry_run": body.dry_run,
    }


# This route is last, because a name may contain slashes and end like the URLs above.
@routes.show("/queues/{stoker_name:queue}", "stoker.view_job", QueueDepth)
def get_queue(request: HttpRequest, queue: QueueName, backend: Backend = None) -> Any:
    """Show one queue."""
    return queues.get(queue, backend=settings_of(backend).alias)
