"""Dead letters: found, understood, sent again, discarded, purged."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from django.http import HttpRequest
from ninja import Query

from stoker.api.access import Routes, name_of
from stoker.api.filters import (
    LONGEST_THROTTLE_SECONDS,
    Discarding,
    Purging,
    Requeueing,
    RequeueingMany,
    ThrottledMany,
    WantedPage,
    WantedStats,
    moment_of,
    refuse_beyond_cap,
)
from stoker.api.problems import Refusal
from stoker.api.shapes import AnswerShape, BulkShape, LetterPage, LetterStats, StoryShape
from stoker.api.values import Backend, cursor_of, mark_of, plain, settings_of
from stoker.dead_letters import service as dead_letters
from stoker.dead_letters.service import Answer, Bulk, Fate

routes = Routes(tags=["dead letters"])

AS_IT_WAS = Requeueing()
NO_REASON = Discarding()


@routes.route(
    "GET", "/dead-letters", permissions=("stoker.view_deadletter",), answers={200: LetterPage}
)
def list_dead_letters(
    request: HttpRequest, wanted: Query[WantedPage], backend: Backend = None
) -> Any:
    """A page of dead letters, the newest first."""
    alias, after = settings_of(backend).alias, mark_of(wanted.after)
    page = dead_letters.find(limit=wanted.limit, after=after, backend=alias, **wanted.given())
    return {"letters": page.letters, "next": cursor_of(page.next)}


@routes.route(
    "GET",
    "/dead-letters/stats",
    permissions=("stoker.view_deadletter",),
    answers={200: LetterStats},
)
def count_dead_letters(
    request: HttpRequest, wanted: Query[WantedStats], backend: Backend = None
) -> Any:
    """Numbers: in all, and of the most frequent faults."""
    alias = settings_of(backend).alias
    return dead_letters.stats(groups=wanted.groups, backend=alias, **wanted.given())


@routes.route(
    "POST",
    "/dead-letters/requeue",
    permissions=("stoker.requeue_deadletter",),
    answers={200: BulkShape},
    example={"filters": {"task": "shop.tasks.charge"}, "limit": 100, "dry_run": True},
)
def requeue_dead_letters(
    request: HttpRequest, body: RequeueingMany, backend: Backend = None
) -> BulkShape:
    """Send those again that are open and that the filters find, the oldest first."""
    bulk = dead_letters.requeue_many(
        **_pace(body),
        by=name_of(request),
        because=body.because,
        to_queue=body.queue,
        run_after=moment_of(body.run_after, body.run_after_seconds),
        backend=settings_of(backend).alias,
        **body.filters.given(),
    )
    return _bulk(bulk, body.dry_run)


@routes.route(
    "POST",
    "/dead-letters/discard",
    permissions=("stoker.discard_deadletter",),
    answers={200: BulkShape},
    example={"filters": {"fingerprint": "5f0c1e"}, "because": "known, mended"},
)
def discard_dead_letters(
    request: HttpRequest, body: ThrottledMany, backend: Backend = None
) -> BulkShape:
    """Close those that are open and that the filters find: nothing is to be done about them."""
    bulk = dead_letters.discard_many(
        **_pace(body),
        by=name_of(request),
        because=body.because,
        backend=settings_of(backend).alias,
        **body.filters.given(),
    )
    return _bulk(bulk, body.dry_run)


@routes.route(
    "POST",
    "/dead-letters/purge",
    permissions=("stoker.purge_deadletter",),
    answers={200: BulkShape},
    example={"older_than_seconds": 2592000, "dry_run": True},
)
def purge_dead_letters(request: HttpRequest, body: Purging, backend: Backend = None) -> BulkShape:
    """Delete dead letters for good, with their history. One that a job carries on stays."""
    refuse_beyond_cap(body.limit)
    bulk = dead_letters.purge(
        timedelta(seconds=body.older_than_seconds),
        state=body.state,
        limit=body.limit,
        dry_run=body.dry_run,
        backend=settings_of(backend).alias,
    )
    return _bulk(bulk, body.dry_run)


@routes.route(
    "GET",
    "/dead-letters/{letter_id}",
    permissions=("stoker.view_deadletter",),
    answers={200: StoryShape},
)
def get_dead_letter(request: HttpRequest, letter_id: UUID, backend: Backend = None) -> Any:
    """One dead letter, by its id or that of the job that failed last, with the error of every
    attempt and who sent it again."""
    story = dead_letters.get(letter_id, backend=settings_of(backend).alias)
    return {
        "letter": story.letter,
        "traceback": plain(story.letter.traceback),
        "attempts": list(story.attempts),
        "requeues": list(story.requeues),
        "args": None if story.args is None else plain(story.args),
        "kwargs": None if story.kwargs is None else plain(story.kwargs),
    }


@routes.route(
    "POST",
    "/dead-letters/{letter_id}/requeue",
    permissions=("stoker.requeue_deadletter",),
    answers={200: AnswerShape, 409: ...},
    example={"because": "the bank is back"},
)
def requeue_dead_letter(
    request: HttpRequest, letter_id: UUID, body: Requeueing = AS_IT_WAS, backend: Backend = None
) -> Any:
    """Send one again. 409: a newer job of its key, or one that carries it on, is there already and
    wins, or it is closed; `fate`, `job_id` and `detail` say which."""
    answer = dead_letters.requeue(
        letter_id,
        by=name_of(request),
        because=body.because,
        args=body.args,
        kwargs=body.kwargs,
        to_queue=body.queue,
        run_after=body.moment(),
        backend=settings_of(backend).alias,
    )
    return done_or_refused(answer)


@routes.route(
    "POST",
    "/dead-letters/{letter_id}/undo-requeue",
    permissions=("stoker.requeue_deadletter",),
    answers={200: AnswerShape, 409: ...},
    example={"because": "the bank is not back"},
)
def undo_requeue_of_dead_letter(
    request: HttpRequest, letter_id: UUID, body: Discarding = NO_REASON, backend: Backend = None
) -> Any:
    """Take the requeue of one back: its new job is cancelled, and it is open as it was. 409: that
    job has begun, or there is none."""
    answer = dead_letters.undo_requeue(
        letter_id, by=name_of(request), because=body.because, backend=settings_of(backend).alias
    )
    return done_or_refused(answer)


@routes.route(
    "POST",
    "/dead-letters/{letter_id}/discard",
    permissions=("stoker.discard_deadletter",),
    answers={200: AnswerShape, 409: ...},
    example={"because": "known, mended"},
)
def discard_dead_letter(
    request: HttpRequest, letter_id: UUID, body: Discarding = NO_REASON, backend: Backend = None
) -> Any:
    """Close one: nothing is to be done about it. 409: it is closed, or a job carries it on."""
    alias = settings_of(backend).alias
    letter = dead_letters.get(letter_id, backend=alias).letter
    by = name_of(request)
    if not dead_letters.discard(letter.pk, by=by, because=body.because, backend=alias):
        letter = dead_letters.get(letter_id, backend=alias).letter
        if letter.successor_id is not None:
            sentence = f"job {letter.successor_id} carries it on: cancel that first"
            answer = Answer(letter.pk, Fate.UNDER_WAY, letter.successor_id, sentence)
        else:
            answer = Answer(letter.pk, Fate.CLOSED, None, f"it is {letter.state}")
        return done_or_refused(answer)
    return _answer(Answer(letter.pk, Fate.DISCARDED))


REFUSED = {Fate.GONE: 404, Fate.REFUSED: 422}


def done_or_refused(answer: Answer) -> AnswerShape:
    """Raises Refusal where nothing was done."""
    if answer.fate in (Fate.REQUEUED, Fate.TAKEN_BACK):
        return _answer(answer)
    raise Refusal(
        REFUSED.get(answer.fate, 409),
        f"Nothing was done: {answer.because}.".replace("..", "."),
        fate=answer.fate.value,
        job_id=answer.job_id,
        dead_letter_id=answer.dead_letter_id,
    )


def _pace(body: ThrottledMany) -> dict[str, Any]:
    refuse_beyond_cap(body.limit)
    if not (body.filters.given() or body.all or body.dry_run):
        raise Refusal(422, "filters: name at least one, or say that it shall be all: true.")
    if body.limit * body.pause_seconds > LONGEST_THROTTLE_SECONDS:
        raise Refusal(
            422,
            f"pause_seconds: {body.limit} with such pauses would take longer than "
            f"{LONGEST_THROTTLE_SECONDS:g} seconds; ask for fewer at a time.",
        )
    return {"limit": body.limit, "pause_seconds": body.pause_seconds, "dry_run": body.dry_run}


def _bulk(bulk: Bulk, dry_run: bool) -> BulkShape:
    others = [_answer(one) for one in bulk.others]
    return BulkShape(matched=bulk.matched, done=bulk.done, others=others, dry_run=dry_run)


def _answer(answer: Answer) -> AnswerShape:
    return AnswerShape(
        dead_letter_id=answer.dead_letter_id,
        fate=answer.fate.value,
        job_id=answer.job_id,
        because=answer.because,
    )
