"""Dead letters: found, understood, sent again or discarded.

::

    from stoker import dead_letters

    for letter in dead_letters.find(task="shop.tasks.charge").letters: ...
    dead_letters.requeue(letter.id, by="alice", because="the bank is back")

LetterFilters are the same everywhere: see ``Filter``. Every call takes ``backend``, a name under
``TASKS``. Whoever discards or purges a dead letter that halts a sequence lets that go on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Unpack
from uuid import UUID

from django.utils import timezone

from stoker.conf import Settings, settings_for
from stoker.exceptions import DeadLetterNotFound, PackageError
from stoker.jobs.package import sealer_for
from stoker.jobs.states import explained
from stoker.models import Attempt, DeadLetter, Requeue
from stoker.values.ids import parse_job_id

from .closing import Bulk, each, purge_past
from .closing import discard as discard_one
from .requeueing import LetterAnswer, LetterFate, Wish, take_back
from .requeueing import requeue as requeue_one
from .search import DeadLetterPage, FaultGroup, Filter, LetterFilters, Search, Stats

__all__ = [
    "Answer",
    "Bulk",
    "DeadLetterPage",
    "Fate",
    "FaultGroup",
    "Filter",
    "Stats",
    "Story",
    "count",
    "discard",
    "discard_many",
    "find",
    "get",
    "purge",
    "requeue",
    "requeue_many",
    "stats",
    "undo_requeue",
]


Answer = LetterAnswer
Fate = LetterFate


@dataclass(frozen=True, slots=True)
class Story:
    """All that is known of one dead letter."""

    letter: DeadLetter
    attempts: Sequence[Attempt]
    """Of all jobs that this entry is of, oldest first, each with its error."""
    requeues: Sequence[Requeue]
    """Oldest first."""
    args: Sequence[Any] | None
    """Of the job that failed last; None = the package cannot be opened."""
    kwargs: Mapping[str, Any] | None


def find(
    *,
    limit: int = 50,
    after: str | None = None,
    backend: str = "default",
    **filters: Unpack[LetterFilters],
) -> DeadLetterPage:
    """A page of dead letters, the newest first.

    Args:
        limit: how many.
        after: ``DeadLetterPage.next`` of the page before.

    Raises:
        ValueError: ``after`` is no such thing.
    """
    settings = settings_for(backend)
    with explained(settings.database):
        return Search(settings.database, Filter(**filters)).page(limit, after)


def count(*, backend: str = "default", **filters: Unpack[LetterFilters]) -> int:
    """How many there are."""
    settings = settings_for(backend)
    with explained(settings.database):
        return Search(settings.database, Filter(**filters)).rows().count()


def stats(*, groups: int = 10, backend: str = "default", **filters: Unpack[LetterFilters]) -> Stats:
    """Numbers: in all, and of the most frequent faults.

    Args:
        groups: of how many faults.
    """
    settings = settings_for(backend)
    with explained(settings.database):
        return Search(settings.database, Filter(**filters)).stats(groups)


def get(dead_letter_id: UUID | str, *, backend: str = "default") -> Story:
    """One dead letter, with the error of every attempt.

    Args:
        dead_letter_id: its id, or that of the job that failed last.

    Raises:
        DeadLetterNotFound: there is none.
    """
    settings = settings_for(backend)
    with explained(settings.database):
        letter = _letter(settings, dead_letter_id)
        requeues = list(
            Requeue.objects.using(settings.database)
            .filter(identity=letter.identity)
            .order_by("requeued_at", "pk")
        )
        jobs = {letter.job_id, *(one.from_job_id for one in requeues)}
        attempts = list(
            Attempt.objects.using(settings.database)
            .filter(job_id__in=jobs)
            .order_by("finished_at", "number")
        )
    try:
        package = sealer_for(settings).open(bytes(letter.package))
    except PackageError:
        return Story(letter, attempts, requeues, None, None)
    return Story(letter, attempts, requeues, package.args, package.kwargs)


def requeue(
    dead_letter_id: UUID | str,
    *,
    by: str = "",
    because: str = "",
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    to_queue: str | None = None,
    run_after: datetime | timedelta | float | None = None,
    backend: str = "default",
) -> LetterAnswer:
    """Send one dead letter again, in one transaction: the caller's, if there is one. There are
    never two jobs of it that are alive: if one is there already, the answer says which.

    Args:
        dead_letter_id: its id, or that of the job that failed last.
        by, because: who, and why; kept in its history.
        args, kwargs: arguments that take the place of the old ones.
        to_queue, run_after: as for ``using()``; None = the old queue, and at once.

    Raises:
        DeadLetterNotFound: there is none.
    """
    settings = settings_for(backend)
    wish = Wish(by, because, Requeue.By.PERSON, args, kwargs, to_queue, run_after)
    with explained(settings.database):
        return requeue_one(settings, _letter(settings, dead_letter_id).pk, wish)


def undo_requeue(
    dead_letter_id: UUID | str, *, by: str = "", because: str = "", backend: str = "default"
) -> LetterAnswer:
    """Take a requeue back, as long as its job has not begun: that is cancelled, and the dead letter
    is open as it was. ``LetterFate.TAKEN_BACK``; else the answer says why not.

    Args:
        dead_letter_id: its id, or that of the job that failed last.
        by, because: who, and why; kept with the job.

    Raises:
        DeadLetterNotFound: there is none.
    """
    settings = settings_for(backend)
    with explained(settings.database):
        return take_back(settings, _letter(settings, dead_letter_id).pk, by, because)


def discard(
    dead_letter_id: UUID | str, *, by: str = "", because: str = "", backend: str = "default"
) -> bool:
    """Close one dead letter: nothing is to be done about it.

    Returns:
        False: it was closed before, is not there, or a job carries it on: cancel that first.
    """
    settings = settings_for(backend)
    with explained(settings.database):
        try:
            letter = _letter(settings, dead_letter_id)
        except DeadLetterNotFound:
            return False
        return discard_one(settings, letter.pk, by, because)


def requeue_many(
    *,
    limit: int = 1000,
    pause_seconds: float = 0.0,
    dry_run: bool = False,
    by: str = "",
    because: str = "",
    to_queue: str | None = None,
    run_after: datetime | timedelta | float | None = None,
    backend: str = "default",
    **filters: Unpack[LetterFilters],
) -> Bulk:
    """Send those again that are open and that the filters find, the oldest first, each in a
    transaction of its own. One that fails again meanwhile is not sent a second time.

    Args:
        limit: at most so many.
        pause_seconds: between one and the next.
        dry_run: change nothing, and tell how many there are.
        by, because, to_queue, run_after: as for ``requeue``.
    """
    settings = settings_for(backend)
    wish = Wish(by, because, Requeue.By.PERSON, queue=to_queue, run_after=run_after)
    return each(
        settings,
        Filter(**filters),
        lambda one: requeue_one(settings, one, wish),
        limit=limit,
        pause_seconds=pause_seconds,
        dry_run=dry_run,
    )


def discard_many(
    *,
    limit: int = 1000,
    pause_seconds: float = 0.0,
    dry_run: bool = False,
    by: str = "",
    because: str = "",
    backend: str = "default",
    **filters: Unpack[LetterFilters],
) -> Bulk:
    """Close those that are open and that the filters find. Arguments: as for ``requeue_many``."""
    settings = settings_for(backend)

    def close(one: UUID) -> LetterAnswer:
        if discard_one(settings, one, by, because):
            return LetterAnswer(one, LetterFate.DISCARDED)
        return LetterAnswer(one, LetterFate.CLOSED, None, "it is not open any more")

    return each(
        settings,
        Filter(**filters),
        close,
        limit=limit,
        pause_seconds=pause_seconds,
        dry_run=dry_run,
    )


def purge(
    older_than: timedelta,
    *,
    state: str = "closed",
    limit: int = 100_000,
    dry_run: bool = False,
    backend: str = "default",
) -> Bulk:
    """Delete dead letters for good, with their history. One that a job carries on stays.

    Args:
        older_than: since they were closed; for open ones, since they failed last.
        state: "closed" (resolved and discarded), "resolved", "discarded", "open" or "all".
        limit: at most so many.
        dry_run: change nothing, and tell how many there are.
    """
    settings = settings_for(backend)
    before = timezone.now() - older_than
    with explained(settings.database):
        return purge_past(settings, state, before, limit=limit, dry_run=dry_run)


def _letter(settings: Settings, dead_letter_id: UUID | str) -> DeadLetter:
    wanted = parse_job_id(str(dead_letter_id))
    letters = DeadLetter.objects.using(settings.database)
    if wanted is not None:
        found = letters.filter(pk=wanted).first() or letters.filter(job_id=wanted).first()
        if found is not None:
            return found
    raise DeadLetterNotFound(f"There is no dead letter {str(dead_letter_id)!r}.")
