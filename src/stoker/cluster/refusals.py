"""Outcomes that could not be recorded, and the errors that say why."""

from __future__ import annotations

from typing import NamedTuple

from stoker.exceptions import PackageError
from stoker.jobs.record import LeftOut

from .wire import Reported


class Aside(NamedTuple):
    """An outcome that could not be recorded and will be retried."""

    due: float
    pause_seconds: float
    reported: Reported
    is_held_up: bool = False
    """Whether the outcome is not itself the reason: other transactions have locked its rows, or a
    broker outside the store does not answer."""


class Refused(Exception):
    """The store refuses this batch, and would refuse it again."""


CAUSED_BY_OUTCOME = (Refused, PackageError, ValueError, TypeError, OverflowError)
"""Errors by which the store, its driver or the codec refuse a value, whenever it is written."""


class Unanswered(Exception):
    """A broker outside the store has not recorded a part of a batch (``left_out``). If ``is_away``,
    it is unreachable, and otherwise it answers but refuses."""

    def __init__(self, left_out: LeftOut, *, is_away: bool) -> None:
        super().__init__(str(left_out))
        self.left_out = left_out
        self.is_away = is_away
