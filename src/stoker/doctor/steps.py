"""Workflows: a step that is enqueued has a job that has not ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from stoker.models import Job, Step
from stoker.models.statements import with_keys

from .look import Kind, Look

LEFT_BEHIND = Kind(
    "steps_left_behind",
    "The jobs of these steps have ended or are gone, and their workflows do not know: what comes "
    "after them would never begin. Requeue the job, or cancel the workflow.",
)


class Steps(Look):
    """The end of a job is what moves its workflow on, in one transaction."""

    def find(self) -> Iterator[tuple[Kind, Sequence[Any]]]:
        for page in self.scene.pages(Step, "state", "job_id"):
            enqueued = {row[0]: row[2] for row in page if row[1] == Step.State.ENQUEUED}
            if enqueued:
                jobs = with_keys(Job.objects.using(self.alias), enqueued.values())
                alive = set(jobs.filter(status=None).values_list("pk", flat=True))
                over = [pk for pk, job_id in enqueued.items() if job_id not in alive]
                rows = with_keys(Step.objects.using(self.alias), over)
                still = rows.filter(state=Step.State.ENQUEUED).values_list("pk", "job_id")
                yield LEFT_BEHIND, [pk for pk, job_id in still if job_id == enqueued[pk]]
