"""Operations on queues: pause, resume, clear."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote

from stoker import queues
from stoker.inspect.queue_depths import pauses
from stoker.queues import Pause, QueueDepth
from stoker.values.durations import in_words
from stoker.values.text import plural

from .operation import LIMIT, Done, Operation, Operator
from .wording import exactly

QUEUE_COLUMNS = ("queue", "ready", "deferred", "blocked", "running", "next has waited")


def queue_row(queue: QueueDepth) -> Sequence[str]:
    """Return the cells of a queue for ``QUEUE_COLUMNS``; ~ marks an estimate."""
    about, waited = "" if queue.is_exact else "~", queue.oldest_ready_seconds
    numbers = (queue.ready, queue.deferred, queue.blocked, queue.running)
    return (
        queue.name,
        *(f"{about if number else ''}{number:,}" for number in numbers),
        "" if waited is None else in_words(waited),
    )


def pause_in_words(pause: Pause) -> str:
    """Describe a pause as ``paused since ..., by ...: ...``."""
    by = f", by {pause.by}" if pause.by else ""
    because = f": {pause.because}" if pause.because else ""
    return f"paused since {exactly(pause.since)}{by}{because}"


def _pause(operator: Operator, queue: str) -> Done:
    before = pauses(operator.settings).get(queue)
    pause = queues.pause(queue, **operator.signed)
    told = pause_in_words(pause).rstrip(".")
    if before == pause:  # an undo would end an earlier pause
        return Done(f"The queue {queue} was already {told}.", value=pause, count=0)
    sentence = f"The queue {queue} is {told}."
    return Done(sentence, value=pause, undo={"queue": queue} if pause.by == operator.by else {})


def _resume(operator: Operator, queue: str) -> Done:
    if queues.resume(queue, backend=operator.alias):
        return Done(f"The queue {queue} is resumed.", value=True)
    return Done(f"The queue {queue} was not paused.", is_good=False, value=False)


def _clear(
    operator: Operator, queue: str, *, limit: int | None = LIMIT, dry_run: bool = False
) -> Done:
    cleared = queues.clear(queue, limit=limit, dry_run=dry_run, **operator.signed)
    if dry_run:
        sentence = f"{plural(cleared.matched, 'job')} of the queue {queue} would be cancelled."
        return Done(sentence, value=cleared, count=0)
    gone = more = ""
    if cleared.not_kept:
        gone = f" {cleared.not_kept:,} of them were deleted at the broker, and are not kept."
    elif cleared.left_at_server:
        more = (
            f" About {cleared.left_at_server:,} more wait at the broker, which can only delete all "
            f"of them: `manage.py stoker clear {quote(queue)}{operator.settings.backend_option}` "
            "without --limit does so."
        )
    elif cleared.matched == limit:
        more = " There may be more: clear the queue again."
    return Done(
        f"{plural(cleared.done, 'job')} of the queue {queue} cancelled.{gone}{more}",
        value=cleared,
        count=cleared.done,
    )


PAUSE = Operation(
    "pause",
    "queue",
    "stoker.pause_queue",
    _pause,
    question="Pause the queue {name}? Running jobs continue; no other job of this queue starts "
    "until the queue is resumed.",
    undo="resume",
)
RESUME = Operation("resume", "queue", "stoker.pause_queue", _resume)
CLEAR = Operation(
    "clear",
    "queue",
    "stoker.clear_queue",
    _clear,
    has_batches=True,
    question=f"Cancel the jobs that wait in the queue {{name}}, up to {LIMIT:,} of them? Running "
    "jobs continue. This cannot be undone.",
    is_grave=True,
)
OPERATIONS = (PAUSE, RESUME, CLEAR)
