"""Steps: the tree of a workflow. A leaf is a task with its job; the other nodes contain steps.

::

    HELD      --the job that added it succeeds--> PENDING
    PENDING   --the steps before it have ended--> ENQUEUED (a task) or STARTED (a container)
    ENQUEUED  --its job ends--> SUCCESSFUL | FAILED | CANCELLED; STARTED, if it has added steps
    STARTED   --its steps have ended--> SUCCESSFUL | FAILED; UNDOING first, if a step has an undo
    STARTED   --its group has failed and stops--> CANCELLED; if there are undos, UNDOING and FAILED
    FAILED, CANCELLED --its job is requeued--> ENQUEUED, and its parents STARTED

A PENDING step whose parent has ended never starts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

from django.db import connections, models

from stoker.store.engines import engine_of
from stoker.store.statements import update_by_key, with_keys
from stoker.store.written import Written

AT_ONCE = 1000
COLUMNS = (
    "id", "workflow_id", "parent_id", "job_id", "cause", "sealed", "position", "kind", "role",
    "label", "state", "is_optional", "is_wanted", "fails_fast", "size", "at_once", "has_more",
    "has_undo", "has_error", "has_added", "added_in",
)  # fmt: skip
"""Columns that are written for a new step. The others are NULL until it has ended."""


class StepEnd(NamedTuple):
    """How one step ended."""

    step_id: UUID
    state: str
    value: bytes | None = None
    cause: UUID | None = None


class StepQuerySet(models.QuerySet["Step"]):
    def of_jobs(self, job_ids: Collection[UUID]) -> StepQuerySet:
        """Return the steps that belong to the jobs."""
        return self.filter(job_id__in=job_ids)

    def below(self, parent_ids: Collection[UUID]) -> StepQuerySet:
        """Return the children of the steps, without undo and error steps."""
        return self.filter(parent_id__in=parent_ids, role=Step.Role.STEP)

    def add(self, steps: Sequence[Step]) -> None:
        """Insert new steps as plain rows, because there may be thousands."""
        written = Written(connections[self.db])
        values = []
        for step in steps:
            row = [getattr(step, name) for name in COLUMNS]
            row[:5] = [None if one is None else written.id(one) for one in row[:5]]
            row[5] = written.data(row[5])
            values.append(row)
        engine_of(self.db).insert_rows("stoker_step", COLUMNS, values)

    def end(self, ends: Sequence[StepEnd]) -> None:
        """Record how the steps ended. The caller has locked the workflow."""
        if ends:
            engine_of(self.db).end_steps(ends)

    def disown(self, job_ids: Collection[UUID]) -> None:
        """Make sure that earlier versions never run the steps that these jobs have added so far.

        If one of them added a step, it knows only the number of the attempt, and the next run of
        the job may have the same one. To be removed with the next minor version.
        """
        adding = self.of_jobs(job_ids).filter(has_added=True)
        if ids := list(adding.values_list("pk", flat=True)):
            self.filter(parent_id__in=ids, state=Step.State.HELD).update(added_in=None)

    def count_tasks(self, ids: Sequence[UUID]) -> int:
        """Count the tasks among these steps and below them, with two queries for each thousand
        steps that have steps of their own."""
        count = with_keys(self.filter(kind=Step.Kind.TASK), ids).count()
        while ids:
            below = self.filter(parent_id__in=ids[:AT_ONCE])
            count += below.filter(kind=Step.Kind.TASK).count()
            holding = below.exclude(kind=Step.Kind.TASK, has_undo=False, has_error=False)
            ids = [*ids[AT_ONCE:], *holding.values_list("pk", flat=True)]
        return count

    def undone_among(self, chain_ids: Collection[UUID]) -> set[UUID]:
        """Return the chains with a step that was undone or is being undone."""
        if not chain_ids:
            return set()
        members = self.below(chain_ids).filter(has_undo=True)
        chain = self.filter(pk=models.OuterRef("parent_id")).values("parent_id")
        undos = self.filter(parent_id__in=members.values("pk"), role=Step.Role.UNDO)
        begun = undos.exclude(state=Step.State.PENDING)
        undone = begun.annotate(chain_id=models.Subquery(chain))
        return set(undone.values_list("chain_id", flat=True))

    def become(self, ids: Iterable[UUID], state: str) -> None:
        """Set the state of the steps."""
        update_by_key(self, list(ids), state=state)


class StepKind(models.TextChoices):
    TASK = "task"
    CHAIN = "chain"
    GROUP = "group"
    CHORD = "chord"
    MAP = "map"


class StepState(models.TextChoices):
    HELD = "HELD"
    PENDING = "PENDING"
    ENQUEUED = "ENQUEUED"
    STARTED = "STARTED"
    UNDOING = "UNDOING"
    SUCCESSFUL = "SUCCESSFUL"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class Step(models.Model):
    Kind = StepKind

    class Role(models.TextChoices):
        STEP = "step"
        UNDO = "undo"
        ERROR = "error"

    State = StepState

    id = models.UUIDField(primary_key=True)
    """For a task the id of its first job; for the root the id of the workflow."""
    workflow_id = models.UUIDField()
    parent_id = models.UUIDField(null=True)
    position = models.IntegerField(default=0)
    """Position within the parent."""
    kind = models.CharField(max_length=5, choices=Kind.choices)
    role = models.CharField(max_length=5, choices=Role.choices, default=Role.STEP)
    """"undo" and "error" steps belong to their parent but are not among its steps."""
    label = models.CharField(max_length=255, default="")
    """Dotted path of the task, or a name."""
    state = models.CharField(max_length=10, choices=State.choices, default=State.PENDING)
    job_id = models.UUIDField(null=True, unique=True)
    """Newest job of a task. The first one is chosen when the workflow is created."""
    sealed = models.BinaryField(null=True)
    """Message to enqueue when the step starts; NULL afterwards."""
    value = models.BinaryField(null=True)
    """Return value of its job, if another step receives it."""
    cause = models.UUIDField(null=True)
    """The job that caused the failure. For a HELD step that a task has added: the id of the
    task's run, see ``run_id_of``. For an on_error step until it has ended: the job whose result it
    receives."""
    is_optional = models.BooleanField(default=False)
    """Whether the parent continues if this step fails."""
    is_wanted = models.BooleanField(default=False)
    """Whether another step receives its value."""
    fails_fast = models.BooleanField(default=False)
    """For a group: whether the first failure ends it."""
    size = models.IntegerField(default=0)
    """Number of children."""
    at_once = models.IntegerField(null=True)
    """For a group: maximum number of running members."""
    has_more = models.BooleanField(default=False)
    """For a group: whether some members have not started. They start when others end."""
    has_undo = models.BooleanField(default=False)
    """Whether the step has an undo step; for a chain, whether one of its steps has."""
    has_error = models.BooleanField(default=False)
    """Whether it has an ``on_error`` step."""
    has_added = models.BooleanField(default=False)
    """For a task: whether it has added steps, which are its children."""
    added_in = models.SmallIntegerField(null=True)
    """The attempt of the parent task that added this step, as a negative number. Clusters of
    earlier versions look for the number of the attempt, which the next run may have, too, if this
    one did not count. So they never start this step."""

    objects = StepQuerySet.as_manager()

    class Meta:
        verbose_name = "step"
        indexes = (
            models.Index(fields=["parent_id", "role", "state", "position"], name="stoker_step_of"),
            models.Index(fields=["workflow_id", "kind", "state"], name="stoker_step_counts"),
            models.Index(fields=["state", "id"], name="stoker_step_state"),
        )

    def __str__(self) -> str:
        return f"{self.label or self.kind} {self.state}"


ENDED = (Step.State.SUCCESSFUL, Step.State.FAILED, Step.State.CANCELLED)
OPEN = (Step.State.PENDING, Step.State.ENQUEUED, Step.State.STARTED, Step.State.UNDOING)
UNDER_WAY = (Step.State.ENQUEUED, Step.State.STARTED, Step.State.UNDOING)
GROUPS = (Step.Kind.GROUP, Step.Kind.MAP)
