"""Dead letters: by fault, sent again with one click and taken back with another, discarded."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from django.utils import timezone
from django.utils.dateparse import parse_datetime

from stoker.dashboard import labels as words
from stoker.dashboard.request_context import Visit
from stoker.dashboard.views import Done, Page, Refusal, action, page
from stoker.dead_letters import service as dead_letters
from stoker.dead_letters.search import Filter, Search
from stoker.dead_letters.service import Answer, Bulk, Fate
from stoker.exceptions import DeadLetterNotFound
from stoker.jobs.states import explained

from .job import shown

ON_A_PAGE = 30
FAULTS = 20
MOST_AT_ONCE = 500
"""With one click: a request should not take minutes."""
GROUPED = ("fingerprint", "task", "reason")


@page("stoker.view_deadletter")
def show(visit: Visit) -> Page:
    """Faults, and the letters of one or all."""
    given = visit.request.GET
    wanted = {name: given.get(name, "")[:255] for name in (*GROUPED, "queue", "state")}
    wanted["text"] = given.get("q", "").strip()
    filters: Any = {name: value for name, value in wanted.items() if value}
    try:
        found = dead_letters.find(
            limit=ON_A_PAGE, after=given.get("after"), backend=visit.alias, **filters
        )
        with explained(visit.database):
            faults = Search(visit.database, Filter(**filters)).faults(FAULTS)
    except ValueError as error:
        raise Refusal(400, str(error)) from None
    query = {name: value for name, value in wanted.items() if name != "text"}
    query["q"] = wanted["text"]
    context = {
        "wanted": wanted,
        "is_filtered": any(wanted[name] for name in GROUPED),
        "faults": [_fault(visit, one) for one in faults.groups],
        "is_cut": faults.is_cut,
        "letters": found.letters,
        "next": found.next and visit.at("dead-letters", **query, after=found.next),
        "first": given.get("after") and visit.at("dead-letters", **query),
        "states": [
            {
                "title": title,
                "address": visit.at("dead-letters", **{**query, "state": state}),
                "is_current": wanted["state"] == state,
            }
            for title, state in (
                ("Needs attention", ""),
                ("Open", "open"),
                ("Sent again", "requeued"),
                ("Resolved", "resolved"),
                ("Discarded", "discarded"),
            )
        ],
        "can_change": wanted["state"] in ("", "open", "unclosed"),
        "most": MOST_AT_ONCE,
    }
    return Page("dead_letters", context)


@page("stoker.view_deadletter")
def show_one(visit: Visit, letter_id: UUID) -> Page:
    """One, with the error of every attempt and what was done about it."""
    story = dead_letters.get(letter_id, backend=visit.alias)
    context = {
        "letter": story.letter,
        "attempts": list(reversed(story.attempts)),
        "requeues": story.requeues,
        "is_readable": story.args is not None,
        "args": [shown(value) for value in story.args or ()],
        "kwargs": [(name, shown(value)) for name, value in (story.kwargs or {}).items()],
    }
    return Page("dead_letter", context)


@action("stoker.requeue_deadletter")
def requeue(visit: Visit) -> Done:
    """Send one again, or all open ones of a fault."""
    because = visit.request.POST.get("because", "").strip()
    if letter := visit.request.POST.get("letter"):
        answer = dead_letters.requeue(letter, by=visit.by, because=because, backend=visit.alias)
        return _told_of(answer)
    before = timezone.now()
    filters = _fault_of(visit)
    bulk = dead_letters.requeue_many(
        limit=MOST_AT_ONCE, by=visit.by, because=because, backend=visit.alias, **filters
    )
    fields = (*filters.items(), ("since", before.isoformat()))
    sentence = f"{words.plural(bulk.done, 'dead letter')} sent again.{_rest(bulk)}"
    return Done(sentence, not bulk.done, "undo-requeue" if bulk.done else "", fields)


@action("stoker.requeue_deadletter")
def undo(visit: Visit) -> Done:
    """Take back what was sent again, as far as it has not begun."""
    if letter := visit.request.POST.get("letter"):
        answers = [_take_back(visit, letter)]
    else:
        answers = [_take_back(visit, str(one)) for one in _just_requeued(visit)]
    done = sum(answer is not None and answer.fate is Fate.TAKEN_BACK for answer in answers)
    begun = len(answers) - done
    sentence = f"{words.plural(done, 'requeue')} taken back." if done else "Nothing was taken back."
    if begun:
        sentence += f" {words.plural(begun, 'job has', 'jobs have')} begun already."
    return Done(sentence, is_bad=not done)


@action("stoker.discard_deadletter")
def discard(visit: Visit) -> Done:
    """Close one, or all open ones of a fault."""
    because = visit.request.POST.get("because", "").strip()
    if letter := visit.request.POST.get("letter"):
        if dead_letters.discard(letter, by=visit.by, because=because, backend=visit.alias):
            return Done("Discarded: it is kept, as closed.")
        return Done("It is closed already, or a job carries it on: cancel that first.", is_bad=True)
    filters = _fault_of(visit)
    bulk = dead_letters.discard_many(
        limit=MOST_AT_ONCE, by=visit.by, because=because, backend=visit.alias, **filters
    )
    return Done(f"{words.plural(bulk.done, 'dead letter')} discarded.{_rest(bulk)}", not bulk.done)


def _fault(visit: Visit, group: Any) -> dict[str, Any]:
    fault = {name: getattr(group, name) for name in GROUPED}
    return {"is": group, "address": visit.at("dead-letters", **fault), "fields": fault.items()}


def _fault_of(visit: Visit) -> dict[str, Any]:
    """Which letters a click is about.

    Raises:
        Refusal: none in particular: nobody means all of them by accident.
    """
    filters = {name: visit.request.POST.get(name, "")[:255] for name in GROUPED}
    filters = {name: value for name, value in filters.items() if value}
    if not filters:
        raise Refusal(400, "No dead letter was named.")
    return filters


def _just_requeued(visit: Visit) -> list[UUID]:
    since: datetime | None = parse_datetime(visit.request.POST.get("since", ""))
    if since is None:
        raise Refusal(400, "It is not said since when.")
    with explained(visit.database):
        letters = Search(visit.database, Filter(**_fault_of(visit), state="requeued")).rows()
        mine = letters.filter(last_requeued_by=visit.by, last_requeued_at__gte=since)
        return list(mine.values_list("pk", flat=True)[:MOST_AT_ONCE])


def _take_back(visit: Visit, letter: str) -> Answer | None:
    try:
        return dead_letters.undo_requeue(letter, by=visit.by, backend=visit.alias)
    except DeadLetterNotFound:
        return None


def _told_of(answer: Answer) -> Done:
    if answer.fate is Fate.REQUEUED:
        fields = (("letter", str(answer.dead_letter_id)),)
        return Done("Sent again.", undo="undo-requeue", fields=fields)
    because = answer.because or answer.fate.value
    return Done(f"Not sent again: {because}.", is_bad=True)


def _rest(bulk: Bulk) -> str:
    """What is to be said of those that were left."""
    if bulk.others:
        because = bulk.others[0].because or bulk.others[0].fate.value
        return f" {len(bulk.others):,} were not: {because}."
    if bulk.matched == MOST_AT_ONCE:
        return " There may be more of them."
    return ""
