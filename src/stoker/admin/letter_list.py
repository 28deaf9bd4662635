"""A page of dead letters, read along an index.

What no index answers is looked for among the next ``LOOKED_AT`` of them; then the page says so, and
the next one goes on from there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from stoker import dead_letters
from stoker.models import DeadLetter
from stoker.models.dead_letter_search import MARK

from .visit import Visit

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
