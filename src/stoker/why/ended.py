"""Of a job that has ended: how."""

from __future__ import annotations

from stoker.models import DeadLetter, Job, Requeue

from .answer import Answer, Kind, at, when
from .asked import Asked

KINDS = {
    DeadLetter.Reason.UNREADABLE: Kind.UNREADABLE,
    DeadLetter.Reason.UNKNOWN_TASK: Kind.UNKNOWN_TASK,
}


def answer_ended(asked: Asked) -> Answer:
    job = asked.job
    assert job is not None
    if job.status == Job.Status.SUCCESSFUL:
        return asked.answer(
            Kind.SUCCESSFUL,
            f"It ended well at {when(job.finished_at)}, in attempt {job.attempts}.",
            finished_at=job.finished_at,
            started_at=job.started_at,
            attempts=job.attempts,
            worker=job.worker_id,
        )
    if job.status == Job.Status.CANCELLED:
        because = f": {job.reason}" if job.reason else ""
        return asked.answer(
            Kind.CANCELLED,
            f"It was cancelled at {when(job.finished_at)}{because}.",
            finished_at=job.finished_at,
            reason=job.reason,
        )
    return _answer_failed(asked, job)


def _answer_failed(asked: Asked, job: Job) -> Answer:
    letter = _letter_of(asked)
    facts = {"finished_at": job.finished_at, "reason": job.reason, "attempts": job.attempts}
    if letter is not None:
        due_us = letter.requeue_due_us
        facts |= {
            "dead_letter": str(letter.pk),
            "dead_letter_state": letter.state,
            "carried_on_by": None if letter.successor_id is None else str(letter.successor_id),
            "requeued_at_the_latest": None if due_us is None else at(due_us),
        }
    word = job.reason.partition(":")[0]
    kind = KINDS.get(DeadLetter.Reason(word), Kind.DEAD_LETTER) if word in REASONS else None
    if kind in KINDS.values():
        facts["error"] = letter.message if letter is not None else job.reason
    sentence = f"It failed for good at {when(job.finished_at)}, after {job.attempts} attempts"
    return asked.answer(
        kind or Kind.DEAD_LETTER,
        f"{sentence}: {job.reason}",
        _advice(letter),
        **facts,
    )


REASONS = frozenset(DeadLetter.Reason.values)


def _letter_of(asked: Asked) -> DeadLetter | None:
    """The dead letter of its logical job: that is another job's by now if it was sent again."""
    letters = DeadLetter.objects.using(asked.alias)
    own = letters.filter(job_id=asked.job_id).first()
    if own is not None:
        return own
    requeues = Requeue.objects.using(asked.alias)
    sent = requeues.filter(from_job_id=asked.job_id).first()
    return letters.filter(identity=sent.identity).first() if sent is not None else None


def _advice(letter: DeadLetter | None) -> str:
    if letter is None:
        return "Its dead letter is not kept any more: enqueue it anew if it is still wanted."
    if letter.state == DeadLetter.State.OPEN:
        again = " It is also sent again by itself." if letter.requeue_due_us is not None else ""
        requeue = f"`manage.py stoker dead requeue {letter.pk}`"
        return f"Mend the cause, then {requeue}, or `discard`.{again}"
    if letter.state == DeadLetter.State.REQUEUED:
        return f"It was sent again, as job {letter.successor_id}: ask about that one."
    return f"Nothing: its dead letter is {letter.state}."
