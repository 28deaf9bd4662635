"""Public functions for dead letters: find, inspect, requeue, discard and purge them.

::

    from stoker import dead_letters

    for letter in dead_letters.find(task="shop.tasks.charge").letters: ...
    dead_letters.requeue(letter.id, by="alice", because="the bank is back")

All functions accept the same filters, see ``Filter``, and ``backend``, an alias in ``TASKS``. A
halted sequence goes on when its dead letter is discarded or purged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Unpack
from uuid import UUID

from django.utils import timezone

from stoker.conf import Settings, settings_for
from stoker.exceptions import DeadLetterNotFound, PackageError
from stoker.jobs.package import sealer_for
from stoker.models import Attempt, DeadLetter, Requeue
from stoker.store.engines.sessions import explained
from stoker.values.ids import parse_job_id

from .closing import Bulk, each, purge_past
from .closing import discard as discard_one
from .requeueing import LetterAnswer, LetterFate, Wish
from .requeueing import requeue as requeue_one
from .search import DeadLetterPage, Filter, LetterFilters, Search, Stats
from .undoing import take_back

Answer = LetterAnswer
Fate = LetterFate
NEWEST = 100
"""Maximum number of attempts, and of requeues, in a ``Story``."""


@dataclass(frozen=True, slots=True)
class Story:
    """A dead letter with its history."""

    letter: DeadLetter
    attempts: Sequence[Attempt]
    """The newest 100 attempts of all its jobs with their errors, oldest first."""
    requeues: Sequence[Requeue]
    """The newest 100 requeues, oldest first."""
    has_more: bool
    """Whether there are older attempts or requeues."""
    args: Sequence[Any] | None
    """Arguments of the last failed job; None = the package cannot be opened."""
    kwargs: Mapping[str, Any] | None


def find(
    *,
    limit: int = 50,
    after: str | None = None,
    backend: str = "default",
    **filters: Unpack[LetterFilters],
) -> DeadLetterPage:
    """Return a page of dead letters, newest first.

    Args:
        limit: maximum number.
        after: ``DeadLetterPage.next`` of the previous page.

    Raises:
        ValueError: ``after`` is invalid.
    """
    settings = settings_for(backend)
    with explained(settings.database):
        return Search(settings, Filter(**filters)).page(limit, after)


def count(*, backend: str = "default", **filters: Unpack[LetterFilters]) -> int:
    """Return the number of dead letters that match the filters. Unlike ``find``, do not search
    arguments for the text."""
    settings = settings_for(backend)
    with explained(settings.database):
        return Search(settings, Filter(**filters)).rows().count()


def stats(*, groups: int = 10, backend: str = "default", **filters: Unpack[LetterFilters]) -> Stats:
    """Return totals and the most frequent errors.

    Args:
        groups: maximum number of errors.
    """
    settings = settings_for(backend)
    with explained(settings.database):
        return Search(settings, Filter(**filters)).stats(groups)


def get(dead_letter_id: UUID | str, *, backend: str = "default") -> Story:
    """Return one dead letter with the errors of its newest attempts.

    Args:
        dead_letter_id: its id, or that of the job that failed last.

    Raises:
        DeadLetterNotFound: it does not exist.
    """
    settings = settings_for(backend)
    with explained(settings.database):
        letter = letter_of(settings, dead_letter_id)
        requeues = list(
            Requeue.objects.using(settings.database)
            .filter(identity=letter.identity)
            .order_by("-requeued_at", "-pk")[: NEWEST + 1]
        )
        jobs = {letter.job_id, *(one.from_job_id for one in requeues)}
        attempts = list(
            Attempt.objects.using(settings.database)
            .filter(job_id__in=jobs)
            .order_by("-finished_at", "-number")[: NEWEST + 1]
        )
    args, kwargs = None, None
    with suppress(PackageError):
        package = sealer_for(settings).open(bytes(letter.package))
        args, kwargs = package.args, package.kwargs
    return Story(
        letter,
        attempts[:NEWEST][::-1],
        requeues[:NEWEST][::-1],
        has_more=max(len(attempts), len(requeues)) > NEWEST,
        args=args,
        kwargs=kwargs,
    )


def letter_of(settings: Settings, dead_letter_id: UUID | str) -> DeadLetter:
    """Return a dead letter without its history. The arguments and errors are those of ``get``."""
    wanted = parse_job_id(str(dead_letter_id))
    letters = DeadLetter.objects.using(settings.database)
    if wanted is not None:
        with explained(settings.database):
            found = letters.filter(pk=wanted).first() or letters.filter(job_id=wanted).first()
        if found is not None:
            return found
    raise DeadLetterNotFound(f"There is no dead letter {str(dead_letter_id)!r}.")


def requeue(
    dead_letter_id: UUID | str,
    *,
    by: str = "",
    because: str = "",
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    to_queue: str | None = None,
    run_after: datetime | timedelta | float | None = None,
    current_options: bool = False,
    backend: str = "default",
) -> LetterAnswer:
    """Requeue one dead letter, in the caller's transaction if there is one.

    There is never more than one live job for a dead letter: if one exists, the answer names it.

    Args:
        dead_letter_id: its id, or that of the job that failed last.
        by, because: person and reason, stored in its history.
        args, kwargs: arguments that replace the old ones.
        to_queue, run_after: as for ``using()``; None = the old queue, and at once.
        current_options: give the new job the ``max_attempts``, ``max_crashes``, ``timeout`` and
            hooks that its task has now. Those that ``using()`` gave to the failed job are lost.

    Raises:
        DeadLetterNotFound: it does not exist.
    """
    settings = settings_for(backend)
    kind = Requeue.By.PERSON
    wish = Wish(by, because, kind, args, kwargs, to_queue, run_after, current_options)
    with explained(settings.database):
        return requeue_one(settings, letter_of(settings, dead_letter_id).pk, wish)


def undo_requeue(
    dead_letter_id: UUID | str, *, by: str = "", because: str = "", backend: str = "default"
) -> LetterAnswer:
    """Undo a requeue whose job has not started: cancel the job and reopen the dead letter.

    Return an answer with ``Fate.TAKEN_BACK``, or with the reason why the requeue cannot be undone.

    Args:
        dead_letter_id: its id, or that of the job that failed last.
        by, because: person and reason, stored with the job.

    Raises:
        DeadLetterNotFound: it does not exist.
    """
    settings = settings_for(backend)
    with explained(settings.database):
        return take_back(settings, letter_of(settings, dead_letter_id).pk, by, because)


def discard(
    dead_letter_id: UUID | str, *, by: str = "", because: str = "", backend: str = "default"
) -> bool:
    """Close one dead letter without requeueing it.

    Returns:
        False if it is closed or missing, or if its requeued job has not ended yet: cancel it first.
    """
    settings = settings_for(backend)
    with explained(settings.database):
        try:
            letter = letter_of(settings, dead_letter_id)
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
    current_options: bool = False,
    backend: str = "default",
    **filters: Unpack[LetterFilters],
) -> Bulk:
    """Requeue the open dead letters that match the filters, oldest first, each in its own
    transaction.

    Each is requeued at most once.

    Args:
        limit: maximum number.
        pause_seconds: pause between two requeues.
        dry_run: count only.
        by, because, to_queue, run_after, current_options: as for ``requeue``.
    """
    settings = settings_for(backend)
    kind = Requeue.By.PERSON
    wish = Wish(by, because, kind, None, None, to_queue, run_after, current_options)
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
    """Discard the open dead letters that match the filters. Arguments as for ``requeue_many``."""
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
    """Delete dead letters with their history. A requeued dead letter is kept until its job has
    ended.

    Args:
        older_than: time since they were closed or, for open ones, since their last failure.
        state: "closed" (resolved and discarded), "resolved", "discarded", "open" or "all".
        limit: maximum number.
        dry_run: count only.
    """
    settings = settings_for(backend)
    before = timezone.now() - older_than
    with explained(settings.database):
        return purge_past(settings, state, before, limit=limit, dry_run=dry_run)
