"""What is seen of a workflow: how far it is, its steps, its values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from stoker.conf import Settings, settings_for
from stoker.lifecycle.received import Values
from stoker.models import Job, Step
from stoker.results import Result, fetch

AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class WorkflowProgress:
    """How far a workflow is, in tasks. The numbers add up to ``total``."""

    total: int
    """How many tasks it has, those included that were added while it ran."""
    waiting: int
    """Their turn has not come; in a workflow that has ended it never will."""
    enqueued: int
    """They have jobs, which wait or run."""
    successful: int
    failed: int
    cancelled: int


@dataclass(frozen=True, slots=True)
class WorkflowStep:
    """One step, as it was when it was looked at."""

    id: str
    parent_id: str | None
    """What holds it; None for the outermost."""
    position: int
    """Among those of its parent, from 0."""
    kind: str
    """task, chain, group, chord or map."""
    role: str
    """step; or undo or error, which belong to the step ``parent_id``."""
    state: str
    """HELD, PENDING, ENQUEUED, STARTED, UNDOING, SUCCESSFUL, FAILED or CANCELLED."""
    label: str
    """The task's dotted path, or a name."""
    job_id: str | None
    """Of a task: its newest job."""
    backend: str

    @property
    def result(self) -> Result[Any]:
        """Of its job. Raises TaskResultDoesNotExist where that is not kept, or not there yet."""
        return fetch(settings_for(self.backend), self.job_id)


def read_steps(rows: Any, backend: str) -> Iterator[WorkflowStep]:
    """These steps in the order of their ids, a thousand at a time."""
    after: UUID | None = None
    while True:
        later = rows if after is None else rows.filter(pk__gt=after)
        part = list(later.defer("sealed", "value").order_by("pk")[:AT_ONCE])
        for row in part:
            yield WorkflowStep(
                id=str(row.pk),
                parent_id=None if row.parent_id is None else str(row.parent_id),
                position=row.position,
                kind=row.kind,
                role=row.role,
                state=row.state,
                label=row.label,
                job_id=None if row.job_id is None else str(row.job_id),
                backend=backend,
            )
        if len(part) < AT_ONCE:
            return
        after = part[-1].pk


class KeptValues(Values):
    """Also those that no step is given: as they are kept with the jobs."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._jobs = Job.objects.using(settings.database)

    def _filled(self, members: list[Step]) -> list[Step]:
        missing = {
            one.job_id: one for one in members if one.value is None and one.job_id is not None
        }
        if missing:
            rows = self._jobs.filter(pk__in=missing).values_list("pk", "value")
            for job_id, value in rows:
                missing[job_id].value = value
        return members

    def _own(self, step: Step) -> Any:
        if step.value is None and step.job_id is not None:
            self._filled([step])
        return super()._own(step)
