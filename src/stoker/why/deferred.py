"""Of a job that waits for its moment: which, and why."""

from __future__ import annotations

from typing import Any

from stoker.durations import in_words
from stoker.exceptions import PackageError
from stoker.models import Attempt, Deferred, Need

from .answer import Answer, Kind, at, when
from .asked import Asked
from .ready import answer_ready

LATE_SECONDS = 5.0
"""A job that is due for longer is held up by the same as one that is ready."""


def answer_deferred(asked: Asked, row: Deferred) -> Answer:
    asked.queue = row.queue
    seconds = asked.seconds_until(row.due_us)
    if seconds < -LATE_SECONDS:
        return answer_ready(asked, None)
    soon = f"in {in_words(seconds)}, at {when(at(row.due_us))}" if seconds > 0 else "now"
    facts: dict[str, Any] = {"due_at": at(row.due_us), "seconds": max(0.0, seconds)}
    if row.attempts:
        return _answer_retry(asked, row, soon, facts)
    job = asked.job
    if job is not None and job.run_after is not None and at(row.due_us) <= job.run_after:
        sentence = f"It was enqueued to run later: it becomes ready {soon}."
        return asked.answer(Kind.RUN_AFTER, sentence, **facts)
    if isinstance(asked.package, PackageError):
        return answer_ready(asked, None)
    if asked.unknown_task is not None:
        return asked.answer(
            Kind.UNKNOWN_TASK,
            f"No cluster that saw it had its task, nor is it known here; tried again {soon}.",
            "Deploy the code that has the task, or cancel the job. After "
            "UNKNOWN_TASK_GRACE_SECONDS it becomes a dead letter.",
            error=str(asked.unknown_task),
            **facts,
        )
    return _answer_put_back(asked, row, soon, facts)


def _answer_retry(asked: Asked, row: Deferred, soon: str, facts: dict[str, Any]) -> Answer:
    failures = Attempt.objects.using(asked.alias).filter(job_id=asked.job_id)
    last = failures.order_by("-number").first()
    error = "" if last is None else f"{last.exception_class}: {last.message.partition(chr(10))[0]}"
    package = asked.package
    most = None
    if package is not None and not isinstance(package, PackageError):
        most = package.options.max_attempts
    of = f" of {most}" if most else ""
    told = f" ({error})" if error else ""
    return asked.answer(
        Kind.RETRY,
        f"Attempt {row.attempts}{of} failed{told}; it is tried again {soon}.",
        attempts=row.attempts,
        max_attempts=most,
        error=error,
        **facts,
    )


def _answer_put_back(asked: Asked, row: Deferred, soon: str, facts: dict[str, Any]) -> Answer:
    needs = Need.objects.using(asked.alias).of_jobs({asked.job_id: row.guards})[asked.job_id]
    busy = [need.name for need in needs if need.on_busy == "retry"]
    if busy:
        sentence = f"{' or '.join(busy)} was taken when its turn came; it looks again {soon}."
        return asked.answer(Kind.PUT_BACK, sentence, **facts)
    return asked.answer(
        Kind.PUT_BACK,
        f"It was put back without having run; it is tried again {soon}.",
        "If it goes on: the clusters' log says why. Perhaps one of them runs older code, which "
        "does not have the task.",
        **facts,
    )
