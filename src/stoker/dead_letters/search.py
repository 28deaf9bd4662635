"""Search dead letters: filters, pages along an index, and statistics."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypedDict
from uuid import UUID

from django.db.models import Case, Count, Max, Min, Q, QuerySet, Sum, When
from django.db.models.functions import Length

from stoker.conf import Settings
from stoker.jobs.matching import LARGEST_BYTES, MOST_OPENED, Needle
from stoker.models.cluster import LONGEST_HOST
from stoker.models.dead_letter import CLOSED, UNCLOSED, DeadLetter
from stoker.models.requeue import Requeue
from stoker.setting_values import checked_limit
from stoker.store.counting import Number, counts_of
from stoker.store.engines import engine_of
from stoker.store.statements import with_keys
from stoker.values.marks import InvalidFilter, beyond, key_of, mark_of, within
from stoker.values.text import stored_text

STATES = {"unclosed": UNCLOSED, "closed": CLOSED, "all": tuple(DeadLetter.State)}
"""Names of groups of states. Filters accept them as well as single states."""
TEXTS = ("message", "exception_class", "traceback", "key")
SEARCHED = (*TEXTS, "task")
LONGEST_TEXT = 10_000
LOOKED_AT = 10_000
"""Maximum number of dead letters that a page searches if its filters have no index."""
COUNTED_AMONG = 20_000
"""Maximum number of dead letters that are counted if the filters have no index."""
READ = 1_000
"""Number of dead letters that a page reads to find a text, if the filters have no index."""
WALKED = MOST_OPENED
WITHOUT_INDEX = ("queue", "reason", "key", "node")
NEWEST_FIRST, OLDEST_FIRST = ("-failed_at", "-pk"), ("failed_at", "pk")
Key = tuple[datetime, UUID]
KEY = (datetime, UUID)
"""Column types of the sort key of lists of dead letters: ``failed_at`` and ``id``."""


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
    node: str = ""
    """The host on which the last attempt ran."""
    failed_after: datetime | None = None
    failed_before: datetime | None = None
    """The last failure is at or after ``failed_after`` and before ``failed_before``."""
    text: str = ""
    """Text in message, traceback, exception class, task, key or, in pages, in an argument. See
    ``Needle``."""
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
    node: str
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
    is_cut: bool = False
    """Whether the search stopped early, so that older dead letters may match as well."""


@dataclass(frozen=True, slots=True)
class FaultGroup:
    """Dead letters with the same error."""

    fingerprint: str
    task: str
    reason: str
    exception_class: str
    number: int
    failures: int
    """Total number of failures of the jobs in this group."""
    first_failed_at: datetime
    failed_at: datetime
    """Time of the group's most recent failure."""


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

    def __init__(self, settings: Settings, wanted: Filter) -> None:
        self._settings = settings
        self._alias = settings.database
        self._wanted = wanted
        self._condition = _condition(self._alias, wanted)

    def rows(self) -> QuerySet[DeadLetter]:
        """Return all matching dead letters. Unlike ``page``, do not search arguments for the text,
        because they are inside packages, which the database cannot read."""
        return DeadLetter.objects.using(self._alias).filter(self._condition)

    def page(self, limit: int, after: str | None) -> DeadLetterPage:
        checked_limit(limit)
        rows, edge = self._stretch(NEWEST_FIRST, after, LOOKED_AT)
        if self._wanted.text:
            found, last = self._matching(rows, limit)
            known = DeadLetter.objects.using(self._alias).in_bulk(found)
            letters, edge = [known[pk] for pk in found if pk in known], last or edge
        else:
            letters = list(rows[: limit + 1])
        shown = letters[:limit]
        if len(letters) > limit and shown:
            return DeadLetterPage(shown, mark_of((shown[-1].failed_at, shown[-1].pk)))
        return DeadLetterPage(shown, mark_of(edge) if edge else None, is_cut=edge is not None)

    def _stretch(
        self, order: Sequence[str], after: str | None, looked_at: int
    ) -> tuple[QuerySet[DeadLetter], Key | None]:
        """Search the next ``looked_at`` dead letters in this order. Return the matching ones, and
        the key of the last one that was searched, or None if no more remain."""
        letters = DeadLetter.objects.using(self._alias).order_by(*order)
        rows = letters.filter(_condition(self._alias, replace(self._wanted, text="")))
        every = letters.filter(_condition(self._alias, self._indexed))
        if after is not None:
            later = beyond(order, key_of(after, KEY))
            rows, every = rows.filter(later), every.filter(later)
        if not any(getattr(self._wanted, name) for name in WITHOUT_INDEX):
            return rows, None
        edge = every.values_list("failed_at", "pk")[looked_at - 1 : looked_at].first()
        return (rows if edge is None else rows.filter(within(order, edge))), edge

    def _matching(
        self, rows: QuerySet[DeadLetter], limit: int = READ
    ) -> tuple[list[UUID], Key | None]:
        """Return the ids of the dead letters that contain the text, at most ``limit + 1``, and the
        key of the last one read. The key is None if all were read."""
        needle, found, key, number = Needle(self._settings, self._wanted.text), [], None, 0
        small = Case(When(size__lte=LARGEST_BYTES, then="package"))
        sized: Any = rows.annotate(size=Length("package")).annotate(small=small)
        names = ("failed_at", "pk", "task", "small", *TEXTS)
        for failed_at, pk, task, package, *texts in sized.values_list(*names)[:READ]:
            key, number = (failed_at, pk), number + 1
            if needle.matches(task, texts, package and bytes(package)):
                found.append(pk)
            if len(found) > limit:
                return found, None
            if needle.is_exhausted:
                return found, key
        return found, key if number == READ else None

    def onward(self, after: str) -> tuple[list[tuple[UUID, str]], str | None]:
        """Return the next page of matching dead letters, oldest first, for a walk through all of
        them.

        Args:
            after: the mark that the previous call returned; "" = start at the oldest.

        Returns:
            The id of each dead letter with the mark after it; and the mark of the next page, or
            None at the end.
        """
        rows, edge = self._stretch(OLDEST_FIRST, after or None, LOOKED_AT)
        keys = list(rows.values_list("failed_at", "pk")[:WALKED])
        found, last = keys, keys[-1] if len(keys) == WALKED else edge
        if self._wanted.text:
            some = with_keys(DeadLetter.objects.using(self._alias), [key[1] for key in keys])
            matching = set(self._matching(some, WALKED)[0])
            found = [key for key in keys if key[1] in matching]
        return [(key[1], mark_of(key)) for key in found], mark_of(last) if last else None

    def count(self, limit: int) -> Number | None:
        """Count the dead letters that ``onward`` finds, up to ``limit``, among the oldest
        ``COUNTED_AMONG``. Return None if the filter has a text: only ``onward`` finds them."""
        if self._wanted.text:
            return None
        rows, edge = self._stretch(OLDEST_FIRST, None, COUNTED_AMONG)
        (number,) = counts_of([rows], limit)
        return Number(number.number, is_exact=number.is_exact and edge is None)

    @property
    def _indexed(self) -> Filter:
        """Return the part of the filter that an index answers."""
        wanted = self._wanted
        return Filter(
            task=wanted.task,
            failed_after=wanted.failed_after,
            failed_before=wanted.failed_before,
            state="all",
        )

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

        If no index answers the filters, only the newest ``LOOKED_AT`` dead letters are searched,
        and only ``READ`` of them if the filters contain a text.

        Args:
            groups: maximum number of errors.
        """
        rows, edge = self._stretch(NEWEST_FIRST, None, LOOKED_AT)
        if self._wanted.text:
            found, last = self._matching(rows)
            edge = last or edge
            rows = with_keys(DeadLetter.objects.using(self._alias), found)
        elif edge is None:
            edge = rows.values_list("failed_at", "pk")[LOOKED_AT : LOOKED_AT + 1].first()
            if edge is not None:
                rows = rows.filter(failed_at__gt=edge[0])
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
    """Return the jobs whose attempts a dead letter shows, which are kept as long as it exists."""
    letters = DeadLetter.objects.using(alias).filter(job_id__in=job_ids)
    requeues = Requeue.objects.using(alias).filter(from_job_id__in=job_ids)
    return {
        *letters.values_list("job_id", flat=True),
        *requeues.values_list("from_job_id", flat=True),
    }


def _condition(alias: str, wanted: Filter) -> Q:
    _refuse_unknown("state", wanted.state, [*DeadLetter.State, *STATES])
    _refuse_unknown("reason", wanted.reason, ["", *DeadLetter.Reason])
    _refuse_no_moment("failed_after", wanted.failed_after)
    _refuse_no_moment("failed_before", wanted.failed_before)
    text, key = stored_text(wanted.text, LONGEST_TEXT), stored_text(wanted.key, LONGEST_TEXT)
    states = STATES.get(wanted.state) or (DeadLetter.State(wanted.state),)
    exact: dict[str, Any] = {
        "queue": wanted.queue,
        "reason": wanted.reason and DeadLetter.Reason(wanted.reason),
        "fingerprint": wanted.fingerprint,
        "failed_at__gte": wanted.failed_after,
        "failed_at__lt": wanted.failed_before,
        "key__contains": key,
        "worker_id__startswith": wanted.node and f"{wanted.node[:LONGEST_HOST]}:",
    }
    condition = Q(**{name: value for name, value in exact.items() if value})
    if wanted.task:
        condition &= engine_of(alias).is_exactly("task", wanted.task)
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
        raise InvalidFilter(f"{name}={value!r}: write one of {names}.")


def _refuse_no_moment(name: str, value: Any) -> None:
    if value is not None and not isinstance(value, datetime):
        raise InvalidFilter(f"{name}={value!r}: give a datetime.")
