"""Again: a new job with the arguments of one that has ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from stoker.conf import Settings
from stoker.exceptions import UnknownTask
from stoker.finding import find_task, task_of
from stoker.models import DeadLetter
from stoker.progress import explained, package_of, progress_of_one
from stoker.results import Result


@dataclass(frozen=True, slots=True)
class Again:
    """What became of a wish to run a job again."""

    result: Result[Any] | None
    """Of the new job, or of the one that has its unique key; None = there is none."""
    because: str = ""
    """Why no job was made; "" = there is a new one."""


def run_again(settings: Settings, job_id: UUID) -> Again:
    """Enqueue the same call once more, in the same queue with the same priority. Not where a dead
    letter is there to be sent again: that would not know of it, and the call be made twice.

    Raises:
        TaskResultDoesNotExist: there is no such job.
        StokerError: as ``enqueue``.
    """
    progress = progress_of_one(settings, job_id)
    job, package = progress.job, package_of(settings, progress.job)
    if job is None or package is None:
        return Again(None, "Its package cannot be opened here, so it cannot be run again.")
    if job.status is None:
        return Again(None, "It has not ended.")
    with explained(settings.database):
        letters = DeadLetter.objects.using(settings.database).unclosed().filter(job_id=job_id)
        if letters.exists():
            return Again(None, "It has a dead letter: requeue that instead.")
    if package.options.receives or package.options.about:
        because = "What it was given came from another step of its workflow: retry that."
        return Again(None, because)
    try:
        task = task_of(package) if package.options.via else find_task(job.task)
    except UnknownTask as error:
        return Again(None, str(error))
    task = task.using(queue_name=job.queue, priority=job.priority, backend=settings.alias)
    result = task.enqueue(*package.args, **package.kwargs)
    if result.was_duplicate:
        return Again(result, "There is a job of the same unique key already: this one.")
    return Again(result)
