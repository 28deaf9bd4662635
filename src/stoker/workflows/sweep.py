"""The part of upkeep for workflows: delete old ones and unused values, and advance stuck steps.

Normally the process that records a job's end advances its workflow. This sweep repairs workflows
whose rows were edited by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from uuid import UUID

from django.db import OperationalError
from django.db.models import Exists, OuterRef, Q
from django.utils import timezone

from stoker.brokers.adapters import broker_for
from stoker.conf import Settings
from stoker.exceptions import ConfigurationError
from stoker.jobs.backends import backends_with
from stoker.models import DeadLetter, Job, Step, Workflow
from stoker.models.workflow import WorkflowQuerySet
from stoker.setting_values import Retention
from stoker.signals import tell
from stoker.store.prepared import any_of
from stoker.store.statements import deciding, delete_by_key, update_by_key
from stoker.store.transactions import is_locked_out, skipping_locked

from .deliver import Ended
from .follow import follow

AT_ONCE = 500
SHORTEST_SECONDS = 3600.0
"""Minimum time to keep a workflow, so that waiting clients see how it ended."""
GONE = "its job was removed"


class WorkflowSweep:
    """Upkeep for the workflows of one store. Several backends may have workflows there: each
    workflow is treated as its own backend says.

    Args:
        settings: the backend of the cluster that does upkeep.
        beat: called often, as a heartbeat.
    """

    def __init__(self, settings: Settings, beat: Callable[[], None]) -> None:
        self._settings = settings
        self._alias = settings.database
        self._beat = beat
        self._steps = Step.objects.using(self._alias)
        self._workflows = Workflow.objects.using(self._alias)
        self._enqueued = self._steps.filter(state=Step.State.ENQUEUED)
        self._any_enqueued = any_of(self._enqueued)
        self._after: UUID | None = None

    def tidy(self) -> int:
        """Delete unused values and old workflows. Return the total number of deletions."""
        return self.forget_values() + self.prune()

    def go_on(self) -> int:
        """Advance the steps whose job has ended unnoticed. Return their number.

        Each call checks the next page of steps with jobs.
        """
        if not self._any_enqueued.fetch():
            return 0
        later = self._enqueued if self._after is None else self._enqueued.filter(pk__gt=self._after)
        page = list(later.order_by("pk").defer("value")[:AT_ONCE])
        self._after = page[-1].pk if len(page) == AT_ONCE else None
        rows = Job.objects.using(self._alias).filter(pk__in=[step.job_id for step in page])
        jobs = {job.pk: job for job in rows.defer("package")}
        running = {pk for pk, job in jobs.items() if job.status is None}
        missed = [step for step in page if step.job_id not in running]
        count = 0
        for settings, steps in self._by_backend(missed):
            with suppress(ConfigurationError):  # no driver for its broker, as `check` reports
                count += self._go_on(settings, steps, jobs)
        if count:
            tell("steps_gone_on", count=count)
        return count

    def _by_backend(self, steps: Sequence[Step]) -> list[tuple[Settings, list[Step]]]:
        """Return the steps of each backend. Those of backends that are not in ``TASKS`` any more
        are left out."""
        if not steps:
            return []
        workflows = self._workflows.filter(pk__in={step.workflow_id for step in steps})
        aliases = dict(workflows.values_list("pk", "backend"))
        return [
            (settings, [step for step in steps if aliases.get(step.workflow_id) == settings.alias])
            for settings in backends_with(self._settings)
        ]

    def _go_on(self, settings: Settings, steps: Sequence[Step], jobs: Mapping[UUID, Job]) -> int:
        """Advance these steps of a backend if their jobs have ended. Return their number."""
        ended = self._ended(settings, steps, jobs)
        if not ended:
            return 0
        with deciding(self._alias):
            ended = self._still_missed(steps, ended)
            follow(settings, ended)
        return len(ended)

    def _still_missed(self, steps: Sequence[Step], ended: Sequence[Ended]) -> list[Ended]:
        """Leave out the jobs that another process has recorded since the page was read."""
        self._workflows.lock({step.workflow_id for step in steps})
        enqueued = self._enqueued.filter(pk__in=[step.pk for step in steps])
        missed = set(enqueued.values_list("job_id", flat=True))
        return [one for one in ended if one.job_id in missed]

    def _ended(
        self, settings: Settings, steps: Sequence[Step], jobs: Mapping[UUID, Job]
    ) -> list[Ended]:
        job_ids = [step.job_id for step in steps if step.job_id is not None]
        ended = [
            Ended(
                job.pk,
                job.status,
                job.attempts,
                None if job.value is None else bytes(job.value),
                "",
                job.reason,
            )
            for job in map(jobs.get, job_ids)
            if job is not None and job.status is not None
        ]
        if broker_for(settings).capabilities.transactional:
            gone = [job_id for job_id in job_ids if job_id not in jobs]
            ended += [Ended(one, Job.Status.CANCELLED, 0, None, "", GONE) for one in gone]
        return ended

    def forget_values(self) -> int:
        """Delete values of successful workflows, because no step will receive them. Return their
        number.

        Workflows keep them while a step that was requeued runs, or may be requeued.
        """
        since = timezone.now() - timedelta(seconds=SHORTEST_SECONDS)
        letters = DeadLetter.objects.using(self._alias).unclosed()
        has_letter = Exists(letters.filter(job_id=OuterRef("job_id")))
        reading = self._steps.filter(
            Q(state=Step.State.ENQUEUED) | Q(has_letter, state=Step.State.FAILED),
            workflow_id=OuterRef("pk"),
            kind=Step.Kind.TASK,
        )
        done = self._workflows.filter(
            ~Exists(reading),
            state=Workflow.State.SUCCESSFUL,
            finished_at__gte=since,
            has_values=True,
        )
        count = 0
        for workflow_id in list(done.values_list("pk", flat=True)[:AT_ONCE]):
            holding = self._steps.filter(workflow_id=workflow_id).exclude(value=None)
            while ids := list(holding.values_list("pk", flat=True)[:AT_ONCE]):
                update_by_key(self._steps, ids, value=None)
                count += len(ids)
                self._beat()
            with skipping_locked():
                self._workflows.filter(pk=workflow_id).update(has_values=False)
        return count

    def prune(self) -> int:
        """Delete workflows whose results need not be kept any longer, in batches. Return their
        number."""
        others = backends_with(self._settings)[1:]
        own = self._workflows.exclude(backend__in=[one.alias for one in others])
        removed = self._prune(self._settings.keep_results, own)
        for settings in others:
            workflows = self._workflows.filter(backend=settings.alias)
            removed += self._prune(settings.keep_results, workflows)
        return removed

    def _prune(self, keep: Retention, workflows: WorkflowQuerySet) -> int:
        limits = {
            Workflow.State.SUCCESSFUL: keep.successful_seconds,
            Workflow.State.FAILED: keep.failed_seconds,
            Workflow.State.CANCELLED: keep.failed_seconds,
        }
        removed = 0
        for state, seconds in limits.items():
            if seconds is None:
                continue
            limit = timezone.now() - timedelta(seconds=max(seconds, SHORTEST_SECONDS))
            running = self._enqueued.filter(workflow_id=OuterRef("pk"), kind=Step.Kind.TASK)
            old = workflows.filter(~Exists(running), state=state, finished_at__lt=limit)
            in_order = old.order_by("finished_at").values_list("pk", flat=True)
            locked: set[UUID] = set()
            while ids := list(in_order.exclude(pk__in=locked)[:AT_ONCE]):
                for workflow_id in ids:
                    try:
                        removed += self._remove(workflow_id, old)
                    except OperationalError as error:
                        if not is_locked_out(error):
                            raise
                        locked.add(workflow_id)
                        self._beat()
        return removed

    def _remove(self, workflow_id: UUID, old: WorkflowQuerySet) -> bool:
        """Delete a workflow unless it was retried meanwhile. Return whether it was deleted.

        The outermost step goes first: without it, the workflow cannot be retried any more. The row
        of the workflow goes last, so that an interrupted deletion is continued later.
        """
        with deciding(self._alias):
            self._workflows.lock([workflow_id])
            if not old.filter(pk=workflow_id).exists():
                return False
            self._steps.filter(pk=workflow_id).delete()
        steps = self._steps.filter(workflow_id=workflow_id)
        while ids := list(steps.values_list("pk", flat=True)[:AT_ONCE]):
            delete_by_key(self._steps, ids)
            self._beat()
        self._workflows.filter(pk=workflow_id).delete()
        return True
