"""Dead letters: list, show, requeue, discard, purge."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from django.http import HttpRequest
from ninja import Query

from stoker.api.access import Routes, may_reveal, operator_of, perform, permitted
from stoker.api.filters import (
    NO_REASON,
    DiscardingMany,
    LetterPageQuery,
    LetterStatsQuery,
    Purging,
    ReasonBody,
    Requeueing,
    RequeueingMany,
    limit_of,
)
from stoker.api.shapes import (
    AnswerShape,
    BulkShape,
    LetterPageShape,
    LetterRowShape,
    LetterShape,
    StoryShape,
)
from stoker.api.values import Backend, call_fields, cursor_of, mark_of, settings_of
from stoker.dead_letters import service as dead_letters
from stoker.dead_letters.closing import Bulk
from stoker.dead_letters.search import Stats
from stoker.models import DeadLetter
from stoker.operations.bulk import permissions_to_search
from stoker.operations.dead_letters import DISCARD, REQUEUE, UNDO, call_in_list, perform_many, purge
from stoker.operations.details import opened_call
from stoker.tasks.arguments import ShownCall
from stoker.values.text import plain

routes = Routes(tags=["dead letters"])

AS_IT_WAS = Requeueing()


@routes.show("/dead-letters", "stoker.view_deadletter", LetterPageShape)
def list_dead_letters(
    request: HttpRequest, wanted: Query[LetterPageQuery], backend: Backend = None
) -> Any:
    """List a page of dead letters, the newest first."""
    settings, after = settings_of(backend), mark_of(wanted.after)
    filters = wanted.given()
    page = dead_letters.find(limit=wanted.limit, after=after, backend=settings.alias, **filters)
    reveal = may_reveal(request)
    rows = [_row_shape(one, call_in_list(settings, one, reveal=reveal)) for one in page.letters]
    return {"letters": rows, "next": cursor_of(page.next), "is_cut": page.is_cut}


def _row_shape(letter: DeadLetter, call: ShownCall | None) -> LetterRowShape:
    columns = {name: getattr(letter, name) for name in LetterShape.model_fields}
    return LetterRowShape(**columns, **call_fields(call))


@routes.show("/dead-letters/stats", "stoker.view_deadletter", Stats)
def count_dead_letters(
    request: HttpRequest, wanted: Query[LetterStatsQuery], backend: Backend = None
) -> Any:
    """Count dead letters, in total and by the most frequent faults. With `text` it reads all
    tracebacks that match the other filters, and does not search arguments."""
    alias = settings_of(backend).alias
    return dead_letters.stats(groups=wanted.groups, backend=alias, **wanted.given())


@routes.change(
    "/dead-letters/requeue",
    REQUEUE,
    BulkShape,
    example={"filters": {"task": "shop.tasks.charge"}, "limit": 100, "dry_run": True},
)
def requeue_dead_letters(
    request: HttpRequest, body: RequeueingMany, backend: Backend = None
) -> Any:
    """Requeue the open dead letters that match the filters, the oldest first. With the filter
    `text` or `key`, the user also needs the permission `stoker.view_deadletter`."""
    _permit_to_search(request, body)
    operator = operator_of(request, backend, body.because)
    options = {**body.selection(), **body.placement()}
    many = dead_letters.requeue_many
    bulk = perform_many(REQUEUE, operator, body.filters.given(), many, **options)
    return _bulk(bulk, body.dry_run)


@routes.change(
    "/dead-letters/discard",
    DISCARD,
    BulkShape,
    example={"filters": {"fingerprint": "5f0c1e"}, "because": "known, mended"},
)
def discard_dead_letters(
    request: HttpRequest, body: DiscardingMany, backend: Backend = None
) -> Any:
    """Close the open dead letters that match the filters. With the filter `text` or `key`, the user
    also needs the permission `stoker.view_deadletter`."""
    _permit_to_search(request, body)
    operator = operator_of(request, backend, body.because)
    many, options = dead_letters.discard_many, body.selection()
    bulk = perform_many(DISCARD, operator, body.filters.given(), many, **options)
    return _bulk(bulk, body.dry_run)


@routes.change(
    "/dead-letters/purge",
    "stoker.purge_deadletter",
    BulkShape,
    example={"older_than_seconds": 2592000, "dry_run": True},
)
def purge_dead_letters(request: HttpRequest, body: Purging, backend: Backend = None) -> Any:
    """Delete dead letters and their history. Requeued dead letters are kept."""
    limit = limit_of(body)
    bulk = purge(
        operator_of(request, backend, body.because),
        timedelta(seconds=body.older_than_seconds),
        state=body.state,
        limit=limit,
        dry_run=body.dry_run,
    )
    return _bulk(bulk, body.dry_run)


@routes.show("/dead-letters/{letter_id}", "stoker.view_deadletter", StoryShape)
def get_dead_letter(request: HttpRequest, letter_id: UUID, backend: Backend = None) -> Any:
    """Show one dead letter, with the errors of its newest 100 attempts, and its newest 100
    requeues. The id is that of the dead letter or of the job that failed last."""
    settings = settings_of(backend)
    story = dead_letters.get(letter_id, backend=settings.alias)
    call = opened_call(settings, bytes(story.letter.package), reveal=may_reveal(request))
    return {
        "letter": story.letter,
        "traceback": plain(story.letter.traceback),
        "attempts": list(story.attempts),
        "requeues": list(story.requeues),
        "has_more": story.has_more,
        **call_fields(call),
    }


@routes.change(
    "/dead-letters/{letter_id}/requeue",
    REQUEUE,
    AnswerShape,
    may_conflict=True,
    example={"because": "the bank is back"},
)
def requeue_dead_letter(
    request: HttpRequest, letter_id: UUID, body: Requeueing = AS_IT_WAS, backend: Backend = None
) -> Any:
    """Requeue one dead letter. 409: a newer job has its unique key, it was requeued before, or it
    is closed; see `fate`, `job_id` and `detail`."""
    operator = operator_of(request, backend, body.because)
    options = {"args": body.args, "kwargs": body.kwargs, **body.placement()}
    return perform(REQUEUE, operator, letter_id, **options).value


@routes.change(
    "/dead-letters/{letter_id}/undo-requeue",
    UNDO,
    AnswerShape,
    may_conflict=True,
    example={"because": "the bank is not back"},
)
def undo_requeue_of_dead_letter(
    request: HttpRequest, letter_id: UUID, body: ReasonBody = NO_REASON, backend: Backend = None
) -> Any:
    """Undo a requeue: cancel the new job and reopen the dead letter. 409: the job has started, or
    there is no requeue."""
    return perform(UNDO, operator_of(request, backend, body.because), letter_id).value


@routes.change(
    "/dead-letters/{letter_id}/discard",
    DISCARD,
    AnswerShape,
    may_conflict=True,
    example={"because": "known, mended"},
)
def discard_dead_letter(
    request: HttpRequest, letter_id: UUID, body: ReasonBody = NO_REASON, backend: Backend = None
) -> Any:
    """Close one dead letter without requeueing it. 409: it is closed or requeued."""
    return perform(DISCARD, operator_of(request, backend, body.because), letter_id).value


def _permit_to_search(request: HttpRequest, body: DiscardingMany) -> None:
    to_search = permissions_to_search("letter", body.filters.given())
    permitted(request.auth, to_search)  # type: ignore[attr-defined] # ninja sets it


def _bulk(bulk: Bulk, dry_run: bool) -> dict[str, Any]:
    return {"matched": bulk.matched, "done": bulk.done, "others": bulk.others, "dry_run": dry_run}
