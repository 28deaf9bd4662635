"""Marks: the position where a page of a list begins, as text for a URL. Also parses moments from
users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import Q
from django.utils import timezone

from .durations import duration_seconds

BETWEEN = "~"
FIRST_YEAR, LAST_YEAR = 1900, 9000
SMALLEST, LARGEST = -(2**63), 2**63 - 1
LONGEST_MARK = 200


class InvalidFilter(ValueError):
    """A filter of a list is wrong. The message is for the user who wrote it."""


class InvalidMark(InvalidFilter):
    """A text is not the mark of a page of this list."""


def mark_of(key: Sequence[Any]) -> str:
    """Return the mark of the row with this key."""
    return BETWEEN.join(
        part.isoformat() if isinstance(part, datetime) else str(part) for part in key
    )


def key_of(mark: str, kinds: Sequence[type[Any]]) -> tuple[Any, ...]:
    """Return the key that the mark stands for.

    Args:
        kinds: The type of each part of the key: int, datetime or UUID.

    Raises:
        InvalidMark: The mark belongs to another list, or a part is out of range.
    """
    mark = mark[:LONGEST_MARK]
    try:
        parts = zip(kinds, mark.split(BETWEEN), strict=True)
        return tuple(_part(kind, text) for kind, text in parts)
    except ValueError:
        raise InvalidMark(f"{mark!r} is not the mark of a page of this list") from None


def beyond(order: Sequence[str], place: Sequence[Any]) -> Q:
    """Return the condition for rows after the row with these values, in the order of one or two
    columns."""
    return _side(order, place, "lt" if order[-1].startswith("-") else "gt")


def within(order: Sequence[str], place: Sequence[Any]) -> Q:
    """Return the condition for rows up to the row with these values, in this order. The negation of
    ``beyond`` would not be a range of the index."""
    return _side(order, place, "gte" if order[-1].startswith("-") else "lte")


def _side(order: Sequence[str], place: Sequence[Any], then: str) -> Q:
    *names, key = (name.lstrip("-") for name in order)
    if not names:
        return Q(**{f"{key}__{then}": place[0]})
    name, beside = names[0], Q(**{names[0]: place[0], f"{key}__{then}": place[1]})
    # The first part lets the database start at a position of the index.
    return Q(**{f"{name}__{then[:2]}e": place[0]}) & (
        Q(**{f"{name}__{then[:2]}": place[0]}) | beside
    )


def project_moment(value: datetime) -> datetime:
    """Return an aware or a naive moment, as USE_TZ says.

    Raises:
        ValueError: The moment is too early or too late for some database.
    """
    refuse_far_moment(value)
    if settings.USE_TZ and timezone.is_naive(value):
        return timezone.make_aware(value)
    if not settings.USE_TZ and timezone.is_aware(value):
        return timezone.make_naive(value)
    return value


def refuse_far_moment(value: datetime) -> None:
    """Raise ValueError if the moment is too early or too late for some database or broker."""
    if not FIRST_YEAR <= value.year <= LAST_YEAR:
        raise ValueError(f"write a moment between the years {FIRST_YEAR} and {LAST_YEAR}")


def moment_from(text: str, *, is_past: bool = False) -> datetime:
    """Parse a moment.

    Args:
        text: A duration from now, such as ``2h``, or a moment, such as ``2030-01-31 06:00``.
        is_past: Whether a duration counts back from now.

    Raises:
        InvalidFilter: The text is neither.
    """
    try:
        distance = timedelta(seconds=duration_seconds(text))
        return project_moment(datetime.now(UTC) + (-distance if is_past else distance))
    except (ValueError, OverflowError):
        pass
    try:
        moment = project_moment(datetime.fromisoformat(text.strip()))
    except (ValueError, OverflowError):
        raise InvalidFilter(
            f"{text[:50]!r} is not a time: write 2h, or 2030-01-31 06:00."
        ) from None
    return moment


def bounds_of(given: Mapping[str, str]) -> tuple[datetime | None, datetime | None]:
    """Return the moments ``since`` and ``until`` in a query string or form; None = no bound.

    Raises:
        InvalidFilter: One of them is not a moment.
    """
    since, until = (given.get(name, "").strip() for name in ("since", "until"))
    return (
        moment_from(since, is_past=True) if since else None,
        moment_from(until, is_past=True) if until else None,
    )


def _part(kind: type[Any], text: str) -> Any:
    if kind is UUID:
        return UUID(text)
    if kind is datetime:
        return project_moment(datetime.fromisoformat(text))
    number = int(text)
    if not SMALLEST <= number <= LARGEST:
        raise ValueError(text)
    return number
