"""Many dead letters at once: those that were ticked, or all that filters find."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.http import QueryDict

from stoker import dead_letters
from stoker.dead_letters import Bulk
from stoker.ids import parse_job_id

from . import letter_verbs
from .letter_list import FILTERS
from .store_admin import Outcome, run_one_of_many
from .visit import Visit

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
        letter_verbs.requeue,
        dead_letters.requeue_many,
    ),
    Many(
        "discard",
        "Discard",
        "stoker.discard_deadletter",
        letter_verbs.discard,
        dead_letters.discard_many,
        is_grave=True,
    ),
    Many("undo", "Undo the requeue of", "stoker.requeue_deadletter", letter_verbs.undo, None),
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
            return _told(many, bulk.matched, [one.because for one in bulk.others])
        outcomes = [run_one_of_many(partial(many.one, visit, one, because)) for one in self.ids]
        others = [one.sentence for one in outcomes if not one.is_good]
        return _told(many, len(outcomes), others)


def _told(many: Many, matched: int, others: Sequence[str]) -> Outcome:
    done = matched - len(others)
    sentence = f"{many.label}: {done:,} of {matched:,} dead letters."
    if others:
        sentence += f" {len(others):,} were not; the first: {others[0].rstrip('.')}."
    return Outcome(sentence, is_good=not others)
