"""``enqueued()``: the waiting jobs with their packages opened."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from stoker.brokers.adapters import broker_for
from stoker.conf import Settings, settings_for
from stoker.exceptions import PackageError
from stoker.jobs.package import sealer_for
from stoker.models.job import Message
from stoker.store.written import moment

from .calls import call
from .store import waiting


@dataclass(frozen=True, slots=True)
class Enqueued:
    """One waiting job."""

    id: str
    task: str
    """Dotted path."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    queue: str
    priority: int
    enqueued_at: datetime
    run_after: datetime | None
    """Earliest start; None = at once."""

    @property
    def call(self) -> str:
        return call(self.task, self.args, self.kwargs)

    def __str__(self) -> str:
        told = [self.call]
        if self.queue != "default":
            told.append(f"queue={self.queue!r}")
        if self.priority:
            told.append(f"priority={self.priority}")
        if self.run_after is not None:
            delay_seconds = (self.run_after - self.enqueued_at).total_seconds()
            told.append(f"after {round(delay_seconds, 2):g} s")
        return "  ".join(told)


def enqueued(
    task: Any = None, *, queue: str | None = None, backend: str = "default"
) -> list[Enqueued]:
    """Return the waiting jobs, deferred ones and retries included, in the order of their enqueues.

    Args:
        task: only jobs of this task or dotted path.
        queue: only jobs in this queue.
        backend: an alias in ``TASKS``.
    """
    settings = settings_for(backend)
    return [
        job
        for job in opened(settings, waiting(broker_for(settings)))
        if (task is None or job.task == path_of(task)) and (queue is None or job.queue == queue)
    ]


def opened(settings: Settings, messages: Iterable[Message]) -> list[Enqueued]:
    """Open the packages of the given jobs. Skip jobs of other clusters, which this backend cannot
    open."""
    jobs = []
    for message in messages:
        try:
            package = sealer_for(settings).open(message.package)
        except PackageError:
            continue
        jobs.append(
            Enqueued(
                id=str(message.job_id),
                task=package.task,
                args=package.args,
                kwargs=package.kwargs,
                queue=message.queue,
                priority=message.priority,
                enqueued_at=moment(message.enqueued_at),
                run_after=None if message.run_after is None else moment(message.run_after),
            )
        )
    return jobs


def path_of(task: Any) -> str:
    """Return the dotted path of a task, as packages contain it."""
    return task if isinstance(task, str) else str(task.module_path)
