"""Dead letters in the admin: lists, faults, requeues (with changed arguments if wanted) and
discards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib import admin
from django.http import QueryDict
from django.http.response import HttpResponseBase

from stoker.dead_letters import service as dead_letters
from stoker.dead_letters.search import LOOKED_AT, DeadLetterPage
from stoker.models import DeadLetter
from stoker.operations import bulk
from stoker.operations import dead_letters as operations
from stoker.operations.arguments import edit_arguments
from stoker.operations.bulk_walk import BY_NAME
from stoker.operations.dead_letters import DISCARD, REQUEUE, UNDO
from stoker.operations.details import REVEAL, call_of, opened_call
from stoker.operations.operation import LIMIT, Done, Operation
from stoker.operations.wording import exactly, first_line, since
from stoker.store.counting import Number
from stoker.values.ids import parse_job_id
from stoker.values.text import first_line_of

from .base import AdminContext, StoreAdmin

PAGE = 50
MOST_FAULTS = 100
STATES = ("unclosed", "open", "requeued", "resolved", "discarded", "all")
FILTERS = ("task", "queue", "reason", "fingerprint", "key", "text")
BY_STATE = {"open": (REQUEUE, DISCARD), "requeued": (UNDO,)}
"""State -> operations that are possible on a dead letter in that state."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The dead letters that a user has selected for an operation."""

    ids: Sequence[str]
    """Ids of the ticked dead letters; empty with ``is_all``."""
    filters: Mapping[str, str]
    is_all: bool
    """Whether all open dead letters that match the filters are selected."""

    @classmethod
    def read(cls, post: QueryDict) -> Chosen:
        """Read the form."""
        ids = [str(text) for text in post.getlist("ids") if parse_job_id(str(text))]
        given = {name: str(post.get(f"filter-{name}", "")) for name in FILTERS}
        filters = {name: value for name, value in given.items() if value}
        is_all = "all" in post
        return cls([] if is_all else ids[:LIMIT], filters, is_all)

    @property
    def fields(self) -> list[tuple[str, str]]:
        """Return (name, value) of hidden fields, with which the next form repeats the selection."""
        if not self.is_all:
            return [("ids", one) for one in self.ids]
        return [("all", "1"), *((f"filter-{name}", one) for name, one in self.filters.items())]

    @property
    def words(self) -> str:
        """Return the filters as text."""
        if not self.is_all:
            return ""
        which = ", ".join(f"{name} {value}" for name, value in self.filters.items()) or "all"
        return f" ({which}; the oldest first)"

    def count(self, visit: AdminContext, operation: Operation) -> Number:
        """Return the number of selected dead letters. Raises ValueError if a filter is invalid."""
        if not self.is_all:
            return Number(len(self.ids))
        if operation.name not in BY_NAME:
            return Number(0)
        row = bulk.preview(visit.operator, operation, self.query)
        return Number(row.matched, is_exact=row.is_counted)

    def attempt(self, visit: AdminContext, operation: Operation) -> Done:
        """Perform the operation on all selected dead letters."""
        if operation.name not in BY_NAME:
            return operation.attempt_each(visit.operator, self.ids)
        wanted = self.query if self.is_all else {"ids": self.ids}
        return bulk.perform(visit.operator, operation, wanted)

    @property
    def query(self) -> dict[str, str]:
        """Return the filters as in the query string of the list."""
        return {"q" if name == "text" else name: value for name, value in self.filters.items()}


@admin.register(DeadLetter)
class DeadLetterAdmin(StoreAdmin):
    view_permission = "stoker.view_deadletter"
    plural = "Dead letters"
    operations = (REQUEUE, UNDO, DISCARD)

    def pages(self) -> Sequence[tuple[str, str, Callable[..., HttpResponseBase]]]:
        return (
            ("faults/", "faults", self.faults),
            ("together/", "together", self.together),
            ("<stoker_any:object_id>/edit/", "edit", self.edit),
        )

    # -- lists ------------------------------------------------------------------------------------

    def all(self, visit: AdminContext) -> HttpResponseBase:
        asked = {name: visit.request.GET.get(name, "").strip() for name in FILTERS}
        state = visit.request.GET.get("state", "") or "unclosed"
        page, problem = _page(visit, {**asked, "state": state})
        context = {
            "rows": [_row(visit, letter) for letter in page.letters],
            "asked": {**asked, "state": state},
            "problem": problem,
            "reasons": DeadLetter.Reason.values,
            "states": visit.tabs(STATES, state),
            **visit.paging(page.next),
            "is_cut": page.is_cut,
            "faults_url": visit.at("deadletter_faults"),
            "choices": self._choices(visit),
            "together_url": visit.at("deadletter_together"),
            "filters": [(name, asked[name]) for name in FILTERS if asked[name]],
        }
        return self.show(visit, "letters", context)

    def faults(self, visit: AdminContext) -> HttpResponseBase:
        """Return the page that groups dead letters by fault."""
        visit.require(self.view_permission)
        faults = operations.faults_of(visit.settings, {}, MOST_FAULTS)
        rows = [
            {
                "fault": fault,
                "kind": operations.kind_of(fault),
                "url": visit.at(
                    "deadletter_changelist", fingerprint=fault.fingerprint, task=fault.task
                ),
                "last": exactly(fault.failed_at),
                "last_ago": since(fault.failed_at),
                "first": exactly(fault.first_failed_at),
            }
            for fault in faults.groups
        ]
        context = {
            "title": "Dead letters by fault",
            "rows": rows,
            "is_cut": faults.is_cut,
            "looked_at": LOOKED_AT,
            "choices": [one for one in self._choices(visit) if one.name in BY_NAME],
            "together_url": visit.at("deadletter_together"),
        }
        return self.show(visit, "faults", context)

    def _choices(self, visit: AdminContext) -> list[Operation]:
        return [one for one in self.operations if visit.may(one.permission)]

    # -- one --------------------------------------------------------------------------------------

    def one(self, visit: AdminContext, object_id: str) -> HttpResponseBase:
        story = dead_letters.get(object_id, backend=visit.alias)
        letter, package = story.letter, bytes(story.letter.package)
        is_editable = letter.state == "open" and visit.may(REQUEUE.permission)
        context = {
            "title": f"{letter.task or 'unknown task'}: {letter.reason}",
            "letter": letter,
            "facts": operations.facts_of(letter),
            "job_url": visit.at("job_change", letter.job_id),
            "successor_url": letter.successor_id and visit.at("job_change", letter.successor_id),
            "attempts": list(reversed(story.attempts)),
            "has_more": story.has_more,
            "requeues": [
                {"is": one, "url": visit.at("job_change", one.job_id)}
                for one in reversed(story.requeues)
            ],
            "buttons": self.buttons(visit, BY_STATE.get(letter.state, ()), str(letter.pk)),
            "edit_url": visit.at("deadletter_edit", letter.pk) if is_editable else "",
            **call_of(opened_call(visit.settings, package, reveal=visit.may(REVEAL))),
        }
        return self.show(visit, "letter", context)

    def edit(self, visit: AdminContext, object_id: str) -> HttpResponseBase:
        """Requeue a dead letter with other arguments."""
        visit.require(REQUEUE.permission)
        visit.require(self.view_permission)  # the form shows the arguments
        letter = dead_letters.letter_of(visit.settings, object_id)
        back = self._back(visit, str(letter.pk))
        queue = visit.request.POST.get("queue", letter.queue)
        done, form = edit_arguments(visit, REQUEUE, letter, to_queue=queue.strip() or None)
        if done is not None:
            return self.done(visit, done, back)
        more = {"title": "Requeue with other arguments", "letter": letter, "back": back}
        return self.show(visit, "edit_letter", {**form, **more, "queue": queue})

    # -- many -------------------------------------------------------------------------------------

    def together(self, visit: AdminContext) -> HttpResponseBase:
        """Perform an operation on ticked or filtered dead letters after the user has confirmed
        it."""
        back, post = visit.at("deadletter_changelist"), visit.request.POST
        operation = next((one for one in self.operations if one.word == post.get("verb")), None)
        if operation is None:
            return self.done(visit, Done("Choose an operation.", False), back)
        visit.require(operation.permission)
        chosen = Chosen.read(post)
        for permission in bulk.permissions_to_search("letter", chosen.filters):
            visit.require(permission)
        try:
            number = chosen.count(visit, operation)
        except ValueError as error:
            return self.done(visit, Done(first_line_of(error), False), back)
        if number == Number(0):
            sentence = "No dead letter is chosen: select dead letters, or choose all."
            return self.done(visit, Done(sentence, False), back)
        if "confirmed" in post:
            return self.done(visit, chosen.attempt(visit, operation), back)
        title = f"{operation.title}: {bulk.number_in_words(number, 'dead letter')}"
        return self.confirm(
            visit,
            operation,
            title=title,
            question=f"{title}{chosen.words}?",
            action=visit.at("deadletter_together"),
            back=back,
            items=chosen.ids,
            fields=[("verb", operation.word), *chosen.fields],
        )


def _page(visit: AdminContext, filters: Mapping[str, str]) -> tuple[DeadLetterPage, str]:
    """Return a page of dead letters, and an error message if the request is not valid."""
    after = visit.request.GET.get("after") or None
    try:
        return operations.page_of(visit.settings, filters, PAGE, after), ""
    except ValueError as error:
        return DeadLetterPage((), None), f"{str(error).rstrip('.')}."


def _row(visit: AdminContext, letter: DeadLetter) -> dict[str, Any]:
    return {
        "letter": letter,
        "url": visit.at("deadletter_change", letter.pk),
        "kind": operations.kind_of(letter),
        "call": operations.call_in_list(visit.settings, letter, reveal=visit.may(REVEAL)),
        "message": first_line(letter.message),
        "failed": exactly(letter.failed_at),
        "failed_ago": since(letter.failed_at),
    }
