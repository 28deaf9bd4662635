"""Lists of dead letters in the admin, and the actions on one or many of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from django.http import QueryDict

from stoker.dead_letters import service as dead_letters
from stoker.dead_letters.search import MARK
from stoker.dead_letters.service import Answer, Bulk, Fate
from stoker.models import DeadLetter
from stoker.values.ids import parse_job_id

from .base import Outcome, Visit, run_one_of_many


class Choice(NamedTuple):
    """How one is sent again that was edited."""

    args: Sequence[Any] | None
    """None = as they were."""
    kwargs: Mapping[str, Any] | None
    queue: str | None


def requeue(visit: Visit, object_id: str, because: str) -> Outcome:
    """Send it again as it was."""
    return _told(
        dead_letters.requeue(object_id, by=visit.by, because=because, backend=visit.alias), visit
    )


def requeue_edited(visit: Visit, object_id: UUID, because: str, choice: Choice) -> Outcome:
    """Send it again with these arguments."""
    answer = dead_letters.requeue(
        object_id,
        by=visit.by,
        because=because,
        args=choice.args,
        kwargs=choice.kwargs,
        to_queue=choice.queue,
        backend=visit.alias,
    )
    return _told(answer, visit)


def undo(visit: Visit, object_id: str, because: str) -> Outcome:
    """Take the requeue back, if its job has not begun."""
    answer = dead_letters.undo_requeue(object_id, by=visit.by, because=because, backend=visit.alias)
    if answer.fate is Fate.TAKEN_BACK:
        return Outcome("The requeue is taken back: the dead letter is open again.")
    return Outcome(f"Nothing was done: {answer.because}.", is_good=False)


def discard(visit: Visit, object_id: str, because: str) -> Outcome:
    """Close it: nothing is to be done about it."""
    if dead_letters.discard(object_id, by=visit.by, because=because, backend=visit.alias):
        return Outcome("The dead letter is discarded.")
    return Outcome("Nothing was done: it is closed already, or a job carries it on.", is_good=False)


def _told(answer: Answer, visit: Visit) -> Outcome:
    if answer.fate is Fate.REQUEUED:
        return Outcome(f"Sent again as job {answer.job_id}. Until that begins, it can be undone.")
    sentence = f"Nothing was done: {answer.because}".rstrip(".")
    return Outcome(f"{sentence}.", is_good=False)


PAGE = 50
LOOKED_AT = 10_000
FILTERS = ("task", "queue", "reason", "fingerprint", "key", "text")
WITHOUT_INDEX = ("queue", "reason", "key", "text")
Place = tuple[datetime, UUID]
"""When it failed, and its id: where it stands in the list."""


@dataclass(frozen=True, slots=True)
class LetterPage:
    letters: Sequence[DeadLetter]
    next: str | None
    is_cut: bool = False
    """Whether there may be more among those that were not looked at."""
    problem: str = ""


def asked_of(query: Mapping[str, str]) -> dict[str, str]:
    """What was asked for: the filters by name, and the state."""
    asked = {name: query.get(name, "").strip() for name in FILTERS}
    return {**asked, "state": query.get("state", "") or "unclosed"}


def page_of(visit: Visit, asked: Mapping[str, str]) -> LetterPage:
    """Those asked for, the newest first. What cannot be asked is a problem, told with the page."""
    after = visit.request.GET.get("after") or None
    try:
        return _page(visit, asked, after)
    except ValueError as error:
        return LetterPage((), None, problem=f"{str(error).rstrip('.')}.")


def newest_of(alias: str, number: int, after: str | None = None) -> Place | None:
    """The last of the newest so many, or of the next so many after a place; None = there are fewer.

    Raises:
        ValueError: ``after`` is no place.
    """
    rows = DeadLetter.objects.using(alias).order_by("-failed_at", "-pk")
    if after is not None:
        failed_at, _, pk = after.partition(MARK)
        rows = rows.filter(failed_at__lte=datetime.fromisoformat(failed_at))
        rows = rows.exclude(failed_at=datetime.fromisoformat(failed_at), pk__gte=UUID(pk))
    return rows.values_list("failed_at", "pk")[number - 1 : number].first()


def _page(visit: Visit, asked: Mapping[str, str], after: str | None) -> LetterPage:
    given: dict[str, Any] = {name: value for name, value in asked.items() if value}
    edge = None
    if any(asked[name] for name in WITHOUT_INDEX):
        edge = newest_of(visit.database, LOOKED_AT, after)
        if edge is not None:
            given["failed_after"] = edge[0]
    page = dead_letters.find(limit=PAGE, after=after, backend=visit.alias, **given)
    if edge is None:
        return LetterPage(page.letters, page.next)
    shown = [one for one in page.letters if (one.failed_at, one.pk) >= edge]
    if page.next is not None and len(shown) == len(page.letters):
        return LetterPage(shown, page.next)
    return LetterPage(shown, f"{edge[0].isoformat()}{MARK}{edge[1]}", is_cut=True)


MOST = 1000
"""In one go. A page has to answer."""


@dataclass(frozen=True, slots=True)
class Many:
    """Something that can be done about many."""

    name: str
    label: str
    permission: str
    one: Callable[[Visit, str, str], Outcome]
    by_filters: Callable[..., Bulk] | None
    """None = only about those that were ticked."""
    is_grave: bool = False


MANY = (
    Many(
        "requeue",
        "Requeue",
        "stoker.requeue_deadletter",
        requeue,
        dead_letters.requeue_many,
    ),
    Many(
        "discard",
        "Discard",
        "stoker.discard_deadletter",
        discard,
        dead_letters.discard_many,
        is_grave=True,
    ),
    Many("undo", "Undo the requeue of", "stoker.requeue_deadletter", undo, None),
)


def choices_of(visit: Visit) -> list[dict[str, Any]]:
    """Those that the user has, for templates: which would call whatever can be called."""
    return [
        {
            "name": one.name,
            "label": one.label,
            "is_grave": one.is_grave,
            "takes_filters": one.by_filters is not None,
        }
        for one in MANY
        if visit.may(one.permission)
    ]


def many_named(name: str) -> Many | None:
    return next((one for one in MANY if one.name == name), None)


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which dead letters are meant."""

    ids: Sequence[str]
    """Those that were ticked; empty with ``is_all``."""
    filters: Mapping[str, str]
    is_all: bool
    """All open ones that the filters find."""

    @classmethod
    def read(cls, post: QueryDict) -> Chosen:
        """As the form says it."""
        ids = [str(text) for text in post.getlist("ids") if parse_job_id(str(text))]
        given = {name: str(post.get(f"filter-{name}", "")) for name in FILTERS}
        filters = {name: value for name, value in given.items() if value}
        is_all = "all" in post
        return cls([] if is_all else ids[:MOST], filters, is_all)

    @property
    def fields(self) -> list[tuple[str, str]]:
        """What says the same in the next form."""
        if not self.is_all:
            return [("ids", one) for one in self.ids]
        return [("all", "1"), *((f"filter-{name}", one) for name, one in self.filters.items())]

    @property
    def words(self) -> str:
        if not self.is_all:
            return ""
        which = ", ".join(f"{name} {value}" for name, value in self.filters.items()) or "all"
        return f" ({which}; the oldest first, up to {MOST:,} at a time)"

    def count(self, visit: Visit, many: Many) -> int:
        """How many there are, up to the most in one go. Raises ValueError for filters that cannot
        be."""
        if not self.is_all:
            return len(self.ids)
        if many.by_filters is None:
            return 0
        return many.by_filters(
            limit=MOST, dry_run=True, backend=visit.alias, **self.filters
        ).matched

    def act(self, visit: Visit, many: Many, because: str) -> Outcome:
        """Do it about each."""
        if self.is_all and many.by_filters is not None:
            bulk = many.by_filters(
                limit=MOST, by=visit.by, because=because, backend=visit.alias, **self.filters
            )
            return _told_of_many(many, bulk.matched, [one.because for one in bulk.others])
        outcomes = [run_one_of_many(partial(many.one, visit, one, because)) for one in self.ids]
        others = [one.sentence for one in outcomes if not one.is_good]
        return _told_of_many(many, len(outcomes), others)


def _told_of_many(many: Many, matched: int, others: Sequence[str]) -> Outcome:
    done = matched - len(others)
    sentence = f"{many.label}: {done:,} of {matched:,} dead letters."
    if others:
        sentence += f" {len(others):,} were not; the first: {others[0].rstrip('.')}."
    return Outcome(sentence, is_good=not others)
