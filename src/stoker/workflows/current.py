"""The workflow of the running task, which may add steps to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from asgiref.sync import sync_to_async
from django.db import transaction

from stoker.conf import settings_for
from stoker.exceptions import NotInWorkflow
from stoker.jobs.received import Values
from stoker.jobs.running import Running, current
from stoker.models import Step
from stoker.tasks.signatures import as_node

from .create import Maker, StepPlace, reads
from .deliver import run_id_of
from .results import WorkflowResult, get_workflow


class CurrentWorkflow:
    """The workflow of the running step."""

    def __init__(self, running: Running, step: Step, backend: str) -> None:
        self._running = running
        self._step = step
        self._backend = backend

    @property
    def id(self) -> str:
        return str(self._step.workflow_id)

    @property
    def result(self) -> WorkflowResult:
        """The workflow as ``enqueue`` returned it."""
        return get_workflow(self._step.workflow_id, backend=self._backend)

    def add(self, *nodes: Any) -> None:
        """Add steps that run after this one, one after the other.

        Each step receives the result of the previous one; the first receives the result of this
        step. This step ends when the added ones have ended, with the result of the last one. If
        this attempt fails, they never run.

        Args:
            nodes: signatures, tasks without arguments, chains, groups and chords.

        Raises: as ``Node.enqueue``. Nothing was added then.
        """
        settings = settings_for(self._backend)
        steps = Step.objects.using(settings.database)
        given = [as_node(node) for node in nodes]
        run_id = run_id_of(self._running.delivery.lease)
        with transaction.atomic(using=settings.database):
            before = steps.below([self._step.pk]).filter(cause=run_id).count()
            maker = Maker(settings, self._step.workflow_id)
            for number, node in enumerate(given):
                following = given[number + 1 : number + 2]
                place = StepPlace(
                    self._step.pk,
                    before + number + 1,
                    where=f"added step {before + number + 1}",
                    is_fed=True,
                    # The next step may receive it. The last result becomes that of this step.
                    is_wanted=self._step.is_wanted or any(map(reads, following)) or not following,
                    state=Step.State.HELD,
                    added_in=-self._running.attempt,
                    run_id=run_id,
                )
                maker.add(node, place)
            maker.flush()
            changes: dict[str, bool] = {"has_added": True}
            if given and reads(given[0]):
                changes["is_wanted"] = True
            steps.filter(pk=self._step.pk).update(**changes)

    async def aadd(self, *nodes: Any) -> None:
        """Async version of ``add``."""
        await sync_to_async(self.add, thread_sensitive=True)(*nodes)

    def inputs(self) -> Iterator[Any]:
        """Yield the results of the group before this step, reading a thousand at a time.

        For callbacks written with ``si``, if the list of results would be too long.
        """
        values = Values(settings_for(self._backend), is_strict=True)
        step, _ = values.step_before(self._running.job_id)
        return iter(()) if step is None else values.of_members(step)


def current_workflow() -> CurrentWorkflow:
    """Return the workflow of the running step.

    Raises:
        NotInWorkflow: the running code is not a step of a workflow, or not in a job.
    """
    running = current.get()
    if running is not None:
        backend = running.backend
        settings = settings_for(backend)
        steps = Step.objects.using(settings.database).of_jobs([running.job_id])
        step = steps.defer("sealed", "value").first()
        if step is not None:
            return CurrentWorkflow(running, step, backend)
    raise NotInWorkflow(
        "The code that runs here is not a step of a workflow: current_workflow() is for tasks that "
        "were enqueued in a chain, group or chord."
    )


async def acurrent_workflow() -> CurrentWorkflow:
    """Async version of ``current_workflow``."""
    return await sync_to_async(current_workflow, thread_sensitive=True)()
