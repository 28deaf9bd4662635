"""What can be done about one dead letter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from stoker import dead_letters
from stoker.dead_letters import Answer, Fate

from .store_admin import Outcome
from .visit import Visit


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
