"""Many dead letters at once: each in a transaction of its own, so that one that is refused, or a
process that dies half-way, takes nothing back."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from stoker.conf import Settings
from stoker.long_work import come_so_far
from stoker.models import DeadLetter
from stoker.models.dead_letter import CLOSED
from stoker.models.dead_letter_search import Filter, Search
from stoker.progress import explained
from stoker.setting_values import checked_limit

from . import closing
from .requeue import Answer, Fate

AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class Bulk:
    """What became of many dead letters."""

    matched: int
    """How many the filters found, up to the limit."""
    done: int
    """Requeued, discarded or purged; with ``dry_run`` 0."""
    others: Sequence[Answer] = ()
    """Those that were not, and why."""


def each(
    settings: Settings,
    wanted: Filter,
    act: Callable[[UUID], Answer],
    *,
    limit: int,
    pause_seconds: float,
    dry_run: bool,
) -> Bulk:
    """Do this to each that is open now, the oldest first. One that fails again meanwhile does not
    come up a second time.

    Raises:
        ValueError: the filters name closed ones, or the limit is no number above 0.
    """
    checked_limit(limit)
    if wanted.state not in (DeadLetter.State.OPEN, "unclosed"):
        raise ValueError(
            f"state={wanted.state!r}: only those that are open are sent again or discarded. Leave "
            "state out."
        )
    with explained(settings.database):
        rows = Search(settings.database, replace(wanted, state=DeadLetter.State.OPEN)).rows()
        ids = list(rows.order_by("failed_at", "pk").values_list("pk", flat=True)[:limit])
        if dry_run:
            return Bulk(len(ids), 0)
        answers = []
        for number, one in enumerate(ids):
            if number and pause_seconds:
                time.sleep(pause_seconds)
            answers.append(act(one))
            come_so_far(len(answers), len(ids))
    others = [one for one in answers if one.fate not in (Fate.REQUEUED, Fate.DISCARDED)]
    return Bulk(len(ids), len(answers) - len(others), others)


def purge_past(
    settings: Settings, state: str, before: datetime, *, limit: int, dry_run: bool = False
) -> Bulk:
    """Delete those that were closed, or if they are open, failed last before that moment.

    Args:
        state: a state, "closed" or "all".
    """
    checked_limit(limit)
    matched = done = 0
    for one in _states(state):
        rows = closing.past(settings, one, before)
        ids = list(rows.order_by("failed_at").values_list("pk", flat=True)[: limit - matched])
        matched += len(ids)
        come_so_far(done, matched)
        for start in range(0, 0 if dry_run else len(ids), AT_ONCE):
            done += closing.purge(settings, one, before, ids[start : start + AT_ONCE])
            come_so_far(done, matched)
    return Bulk(matched, done)


def _states(state: str) -> Sequence[str]:
    groups: dict[str, Sequence[str]] = {"closed": CLOSED, "all": (*CLOSED, DeadLetter.State.OPEN)}
    return groups.get(state) or (DeadLetter.State(state),)
