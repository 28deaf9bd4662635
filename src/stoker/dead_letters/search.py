"""Search dead letters: filters, pages along an index, and statistics."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypedDict
from uuid import UUID

from django.db.models import Count, Max, Min, Q, QuerySet, Sum

from stoker.models.dead_letter import CLOSED, UNCLOSED, DeadLetter
from stoker.models.requeue import Requeue
from stoker.setting_values import checked_limit
from stoker.values.marks import key_of, mark_of
from stoker.values.text import stored_text

STATES = {"unclosed": UNCLOSED, "closed": CLOSED, "all": tuple(DeadLetter.State)}
"""Groups of states that filters accept beside single states."""
SEARCHED = ("message", "exception_class", "traceback", "task", "key")
LONGEST_TEXT = 10_000
LOOKED_AT = 10_000
KEY = (datetime, UUID)
"""The types of the columns that lists are ordered by."""


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter of dead letters; "" and None match anything."""

    task: str = ""
    """Dotted path."""
    queue: str = ""
    key: str = ""
    """Name of the unique key, or a part of it."""
    reason: str = ""
    """error, timeout, crash, expired, unreadable or unknown_task."""
    fingerprint: str = ""
    """Fingerprint of the error."""
    failed_after: datetime | None = None
    failed_before: datetime | None = None
    """Bounds of the last failure."""
    text: str = ""
    """Text in message, traceback, exception class, task or key. Scans all rows that match the other
    filters."""
    state: str = "unclosed"
    """open, requeued, resolved or discarded; or "unclosed" = open and requeued, "closed" = resolved
    and discarded, "all"."""


class LetterFilters(TypedDict, total=False):
    """The fields of ``Filter`` as keyword arguments."""

    task: str
    queue: str
    key: str
    reason: str
    fingerprint: str
    failed_after: datetime
    failed_before: datetime
    text: str
    state: str


@dataclass(frozen=True, slots=True)
class DeadLetterPage:
    """A page of dead letters, newest first."""

    letters: Sequence[DeadLetter]
    next: str | None
    """Start of the next page; None = this is the last page."""


@dataclass(frozen=True, slots=True)
class FaultGroup:
    """Dead letters with the same error."""

    fingerprint: str
    task: str
    reason: str
    exception_class: str
    number: int
    failures: int
    """Total number of failures of these jobs."""
    first_failed_at: datetime
    failed_at: datetime
    """Last failure of the newest one."""


@dataclass(frozen=True, slots=True)
class Faults:
    """Errors, most frequent first."""

    groups: Sequence[FaultGroup]
    is_cut: bool
    """Whether older dead letters were left out."""


@dataclass(frozen=True, slots=True)
class Stats:
    """Statistics of dead letters."""

    total: int
    tasks: int
    queues: int
    failures: int
    requeues: int
    oldest: datetime | None
    """The earliest last failure."""
    newest: datetime | None
    faults: Sequence[FaultGroup]
    """The most frequent errors first."""


class Search:
    """A search for dead letters in one database.

    Raises:
        ValueError: the state or reason is unknown.
    """

    def __init__(self, alias: str, wanted: Filter) -> None:
        self._alias = alias
        self._condition = _condition(wanted)

    def rows(self) -> QuerySet[DeadLetter]:
        return DeadLetter.objects.using(self._alias).filter(self._condition)

    def page(self, limit: int, after: str | None) -> DeadLetterPage:
        checked_limit(limit)
        rows = self.rows().order_by("-failed_at", "-pk")
        if after is not None:
            failed_at, pk = key_of(after, KEY)
            rows = rows.filter(Q(failed_at__lt=failed_at) | Q(failed_at=failed_at, pk__lt=pk))
            rows = rows.filter(failed_at__lte=failed_at)  # what an index can begin with
        letters = list(rows[: limit + 1])
        shown = letters[:limit]
        more = len(letters) > limit and shown
        return DeadLetterPage(shown, mark_of((shown[-1].failed_at, shown[-1].pk)) if more else None)

    def stats(self, groups: int) -> Stats:
        rows = self.rows().order_by()
        seen = rows.aggregate(
            total=Count("pk"),
            tasks=Count("task", distinct=True),
            queues=Count("queue", distinct=True),
            failures=Sum("failure_count"),
            requeues=Sum("requeued_count"),
            oldest=Min("failed_at"),
            newest=Max("failed_at"),
        )
        seen |= {name: seen[name] or 0 for name in ("failures", "requeues")}
        return Stats(**seen, faults=self._faults(rows, groups))

    def faults(self, groups: int) -> Faults:
        """Return the most frequent errors among the newest ``LOOKED_AT`` matches.

        Args:
            groups: maximum number of errors.
        """
        rows = self.rows()
        newest = rows.order_by("-failed_at", "-pk").values_list("failed_at", flat=True)
        edge = newest[LOOKED_AT : LOOKED_AT + 1].first()
        if edge is not None:
            rows = rows.filter(failed_at__gt=edge)
        return Faults(self._faults(rows.order_by(), groups), is_cut=edge is not None)

    def _faults(self, rows: QuerySet[DeadLetter], groups: int) -> list[FaultGroup]:
        names = ("fingerprint", "task", "reason", "exception_class")
        grouped = rows.values(*names).annotate(
            number=Count("pk"),
            failures=Sum("failure_count"),
            first=Min("first_failed_at"),
            last=Max("failed_at"),
        )
        return [
            FaultGroup(
                **{name: row[name] for name in names},
                number=row["number"],
                failures=row["failures"],
                first_failed_at=row["first"],
                failed_at=row["last"],
            )
            for row in grouped.order_by("-number", "-last", "fingerprint", "task")[:groups]
        ]


def told_by_dead_letters(alias: str, job_ids: Collection[UUID]) -> set[UUID]:
    """Return those of the jobs whose attempts a dead letter shows."""
    letters = DeadLetter.objects.using(alias).filter(job_id__in=job_ids)
    requeues = Requeue.objects.using(alias).filter(from_job_id__in=job_ids)
    return {
        *letters.values_list("job_id", flat=True),
        *requeues.values_list("from_job_id", flat=True),
    }


def _condition(wanted: Filter) -> Q:
    _refuse_unknown("state", wanted.state, [*DeadLetter.State, *STATES])
    _refuse_unknown("reason", wanted.reason, ["", *DeadLetter.Reason])
    _refuse_no_moment("failed_after", wanted.failed_after)
    _refuse_no_moment("failed_before", wanted.failed_before)
    text, key = stored_text(wanted.text, LONGEST_TEXT), stored_text(wanted.key, LONGEST_TEXT)
    states = STATES.get(wanted.state) or (DeadLetter.State(wanted.state),)
    exact: dict[str, Any] = {
        "task": wanted.task,
        "queue": wanted.queue,
        "reason": wanted.reason and DeadLetter.Reason(wanted.reason),
        "fingerprint": wanted.fingerprint,
        "failed_at__gte": wanted.failed_after,
        "failed_at__lt": wanted.failed_before,
        "key__contains": key,
    }
    condition = Q(**{name: value for name, value in exact.items() if value})
    if wanted.state != "all":
        condition &= Q(state__in=states)
    if text:
        found = Q()
        for name in SEARCHED:
            found |= Q(**{f"{name}__icontains": text})
        condition &= found
    return condition


def _refuse_unknown(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        names = ", ".join(str(one) for one in known if one)
        raise ValueError(f"{name}={value!r}: there is {names}.")


def _refuse_no_moment(name: str, value: Any) -> None:
    if value is not None and not isinstance(value, datetime):
        raise ValueError(f"{name}={value!r}: give a datetime.")
