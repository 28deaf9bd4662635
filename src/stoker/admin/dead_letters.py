"""Dead letters: listed, by fault, looked at, sent again also with other arguments, discarded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from django.contrib import admin
from django.http.response import HttpResponseBase

from stoker.dead_letters import service as dead_letters
from stoker.dead_letters.service import Story
from stoker.models import DeadLetter

from .arguments import Edited, as_text, runner_of
from .base import (
    Outcome,
    StoreAdmin,
    Verb,
    Visit,
    ago,
    first_line,
    first_sentence,
    reason_of,
    run,
    shown,
    shown_moment,
)
from .dead_letter_lists import (
    FILTERS,
    Choice,
    Chosen,
    asked_of,
    choices_of,
    discard,
    many_named,
    newest_of,
    page_of,
    requeue,
    requeue_edited,
    undo,
)

MOST_FAULTS = 100
FAULTS_OF = 10_000
STATES = ("unclosed", "open", "requeued", "resolved", "discarded", "all")


@admin.register(DeadLetter)
class DeadLetterAdmin(StoreAdmin):
    view_permission = "stoker.view_deadletter"
    plural = "Dead letters"
    verbs = (
        Verb("requeue", "Requeue", "stoker.requeue_deadletter", requeue),
        Verb("undo", "Undo the requeue", "stoker.requeue_deadletter", undo),
        Verb(
            "discard",
            "Discard",
            "stoker.discard_deadletter",
            discard,
            asks="Discard this dead letter? It is closed: nothing is to be done about it.",
            is_grave=True,
        ),
    )

    def pages(self) -> Sequence[tuple[str, str, Callable[..., HttpResponseBase]]]:
        return (
            ("faults/", "faults", self.faults),
            ("together/", "together", self.together),
            ("<path:object_id>/edit/", "edit", self.edit),
        )

    # -- lists ------------------------------------------------------------------------------------

    def all(self, visit: Visit) -> HttpResponseBase:
        asked = asked_of(visit.request.GET)
        page = page_of(visit, asked)
        context = {
            "rows": [_row(visit, letter) for letter in page.letters],
            "asked": asked,
            "problem": page.problem,
            "reasons": [str(one) for one in DeadLetter.Reason],
            "states": [
                {
                    "name": name,
                    "url": visit.here(state=name, after=""),
                    "is_chosen": name == asked["state"],
                }
                for name in STATES
            ],
            "next": visit.here(after=page.next) if page.next else "",
            "first": visit.here(after="") if visit.request.GET.get("after") else "",
            "is_cut": page.is_cut,
            "faults_url": visit.at("deadletter_faults"),
            "choices": choices_of(visit),
            "together_url": visit.at("deadletter_together"),
            "filters": [(name, asked[name]) for name in FILTERS if asked[name]],
        }
        return self.show(visit, "letters", context)

    def faults(self, visit: Visit) -> HttpResponseBase:
        """The same fault has one line, however many dead letters it has."""
        visit.require(self.view_permission)
        edge = newest_of(visit.database, FAULTS_OF)
        more: Any = {} if edge is None else {"failed_after": edge[0]}
        seen = dead_letters.stats(groups=MOST_FAULTS, backend=visit.alias, **more)
        rows = [
            {
                "fault": fault,
                "kind": fault.exception_class.rpartition(".")[2] or fault.reason,
                "url": visit.at(
                    "deadletter_changelist", fingerprint=fault.fingerprint, task=fault.task
                ),
                "last": shown_moment(fault.failed_at),
                "last_ago": ago(fault.failed_at),
                "first": shown_moment(fault.first_failed_at),
            }
            for fault in seen.faults
        ]
        context = {
            "title": "Dead letters by fault",
            "rows": rows,
            "seen": seen,
            "is_cut": edge is not None,
            "looked_at": FAULTS_OF,
            "choices": choices_of(visit),
            "together_url": visit.at("deadletter_together"),
        }
        return self.show(visit, "faults", context)

    # -- one --------------------------------------------------------------------------------------

    def one(self, visit: Visit, object_id: str) -> HttpResponseBase:
        story = dead_letters.get(object_id, backend=visit.alias)
        letter = story.letter
        names = {"open": ["requeue", "discard"], "requeued": ["undo"]}.get(letter.state, [])
        context = {
            "title": f"{letter.task or 'unknown task'}: {letter.reason}",
            "letter": letter,
            "facts": _facts(letter),
            "job_url": visit.at("job_change", letter.job_id),
            "successor_url": letter.successor_id and visit.at("job_change", letter.successor_id),
            "args": None if story.args is None else [shown(one) for one in story.args],
            "kwargs": {name: shown(one) for name, one in (story.kwargs or {}).items()},
            "attempts": list(reversed(story.attempts)),
            "requeues": [
                {
                    "at": shown_moment(one.requeued_at),
                    "one": one,
                    "url": visit.at("job_change", one.job_id),
                }
                for one in reversed(story.requeues)
            ],
            "buttons": self.buttons(visit, names, str(letter.pk)),
            "edit_url": visit.at("deadletter_edit", letter.pk)
            if letter.state == DeadLetter.State.OPEN and visit.may("stoker.requeue_deadletter")
            else "",
        }
        return self.show(visit, "letter", context)

    def edit(self, visit: Visit, object_id: str) -> HttpResponseBase:
        """Sent again with other arguments."""
        visit.require("stoker.requeue_deadletter")
        story = dead_letters.get(object_id, backend=visit.alias)
        task, post = runner_of(visit.settings, story.letter), visit.request.POST
        problems: Sequence[str] = ()
        written = before = _written(story)
        if visit.request.method == "POST":
            written = {name: post.get(name, "") for name in ("args", "kwargs", "queue")}
            edited = Edited.read(task, written["args"], written["kwargs"])
            problems = edited.problems
            if not problems:
                choice = _choice(edited, written, before)
                outcome = run(
                    lambda: requeue_edited(visit, story.letter.pk, reason_of(visit), choice)
                )
                if outcome.is_good:
                    return self.done(visit, outcome, self._back(visit, str(story.letter.pk)))
                problems = [outcome.sentence]
        context = {
            "title": "Requeue with other arguments",
            "letter": story.letter,
            "written": written,
            "problems": problems,
            "because": post.get("because", ""),
            "signature": Edited.signature(task),
            "back": self._back(visit, str(story.letter.pk)),
            "is_readable": story.args is not None,
        }
        return self.show(visit, "edit_letter", context)

    # -- many -------------------------------------------------------------------------------------

    def together(self, visit: Visit) -> HttpResponseBase:
        """What is done about those that were ticked, or that filters find, once it is confirmed."""
        back, post = visit.at("deadletter_changelist"), visit.request.POST
        many = many_named(post.get("verb", ""))
        if many is None:
            return self.done(visit, Outcome("Choose what to do.", False), back)
        visit.require(many.permission)
        chosen = Chosen.read(post)
        try:
            number = chosen.count(visit, many)
        except ValueError as error:
            return self.done(visit, Outcome(first_sentence(error), False), back)
        if not number:
            sentence = "There is none: tick dead letters, or say that it shall be all."
            return self.done(visit, Outcome(sentence, False), back)
        if "confirmed" in post:
            return self.done(visit, run(lambda: chosen.act(visit, many, reason_of(visit))), back)
        context = {
            "title": f"{many.label}: {number:,} dead letters",
            "question": f"{many.label} {number:,} dead letters{chosen.words}?",
            "items": chosen.ids,
            "label": many.label,
            "is_grave": many.is_grave,
            "action": visit.at("deadletter_together"),
            "back": back,
            "fields": [("verb", many.name), *chosen.fields],
        }
        return self.show(visit, "confirm", context)


def _row(visit: Visit, letter: DeadLetter) -> dict[str, Any]:
    return {
        "letter": letter,
        "url": visit.at("deadletter_change", letter.pk),
        "kind": letter.exception_class.rpartition(".")[2] or letter.reason,
        "message": first_line(letter.message),
        "failed": shown_moment(letter.failed_at),
        "failed_ago": ago(letter.failed_at),
    }


def _facts(letter: DeadLetter) -> list[tuple[str, str]]:
    times = "once" if letter.failure_count == 1 else f"{letter.failure_count:,} times"
    since = f", since {shown_moment(letter.first_failed_at)}" if letter.failure_count > 1 else ""
    facts = [
        ("state", letter.state),
        ("queue", letter.queue),
        ("reason", letter.reason),
        ("failed", f"{shown_moment(letter.failed_at)}, {ago(letter.failed_at)}; {times}{since}"),
        ("sent again", f"{letter.requeued_count:,} times"),
        ("attempts", f"{letter.attempts:,}, by the job that failed last"),
        ("fault", letter.fingerprint),
    ]
    if letter.key:
        facts.append(("unique key", letter.key))
    if letter.closed_at is not None:
        by = f" by {letter.closed_by}" if letter.closed_by else ""
        facts.append(("closed", f"{shown_moment(letter.closed_at)}{by}: {letter.closed_because}"))
    return facts


def _written(story: Story) -> dict[str, str]:
    """As the form begins: what the job was given, and its queue."""
    return {
        "args": as_text(list(story.args or [])),
        "kwargs": as_text(dict(story.kwargs or {})),
        "queue": story.letter.queue,
    }


def _choice(edited: Edited, written: dict[str, str], before: dict[str, str]) -> Choice:
    """What was left as it stood is not said anew: the job keeps what it was sealed with."""
    is_same = {name: written[name].split() == before[name].split() for name in before}
    return Choice(
        None if is_same["args"] and before["args"] else edited.args,
        None if is_same["kwargs"] and before["kwargs"] else edited.kwargs,
        written["queue"].strip() or None,
    )
