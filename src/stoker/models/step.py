"""Steps: the tree that a workflow is. A leaf is a task, with its job; the others hold steps.

::

    HELD      --the job that added it succeeds--> PENDING
    PENDING   --its turn comes--> ENQUEUED (a task) or STARTED (what holds steps)
    ENQUEUED  --its job ends--> SUCCESSFUL | FAILED | CANCELLED; STARTED, if it has added steps
    STARTED   --its steps have ended--> SUCCESSFUL | FAILED; UNDOING first, if a step has an undo
    FAILED, CANCELLED --its job is sent again--> ENQUEUED, and what holds it STARTED

A step that is PENDING in something that has ended never has its turn.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

from django.db import connections, models

from stoker.store.engines import engine_of
from stoker.store.statements import update_by_key
from stoker.store.written import Written

COLUMNS = (
    "id", "workflow_id", "parent_id", "job_id", "sealed", "position", "kind", "role", "label",
    "state", "is_optional", "is_wanted", "fails_fast", "size", "at_once", "has_more", "has_undo",
    "has_error", "has_added", "added_in",
)  # fmt: skip
"""Of a step that is added: the rest is NULL until it has ended."""


class StepEnd(NamedTuple):
    """What became of one step."""

    step_id: UUID
    state: str
    value: bytes | None = None
    cause: UUID | None = None


class StepQuerySet(models.QuerySet["Step"]):
    def of_jobs(self, job_ids: Collection[UUID]) -> StepQuerySet:
        """The steps that these jobs are."""
        return self.filter(job_id__in=job_ids)

    def below(self, parent_ids: Collection[UUID]) -> StepQuerySet:
        """What these hold, without undos and callbacks."""
        return self.filter(parent_id__in=parent_ids, role=Step.Role.STEP)

    def add(self, steps: Sequence[Step]) -> None:
        """Insert steps that have just been made: thousands at a time, so as plain rows."""
        written = Written(connections[self.db])
        values = []
        for step in steps:
            row = [getattr(step, name) for name in COLUMNS]
            row[:4] = [None if one is None else written.id(one) for one in row[:4]]
            row[4] = written.data(row[4])
            values.append(row)
        engine_of(self.db).insert_rows("stoker_step", COLUMNS, values)

    def end(self, ends: Sequence[StepEnd]) -> None:
        """Write what became of these steps, of which the caller has locked the workflow."""
        if ends:
            engine_of(self.db).end_steps(ends)

    def disown(self, job_ids: Collection[UUID]) -> None:
        """What these jobs have added so far is never run: the attempt that did so does not count,
        and its number will be another's."""
        adding = self.of_jobs(job_ids).filter(has_added=True)
        if ids := list(adding.values_list("pk", flat=True)):
            self.filter(parent_id__in=ids, state=Step.State.HELD).update(added_in=None)

    def become(self, ids: Iterable[UUID], state: str) -> None:
        """Let these steps have this state."""
        update_by_key(self, list(ids), state=state)


class Step(models.Model):
    class Kind(models.TextChoices):
        TASK = "task"
        CHAIN = "chain"
        GROUP = "group"
        CHORD = "chord"
        MAP = "map"

    class Role(models.TextChoices):
        STEP = "step"
        UNDO = "undo"
        ERROR = "error"

    class State(models.TextChoices):
        HELD = "HELD"
        PENDING = "PENDING"
        ENQUEUED = "ENQUEUED"
        STARTED = "STARTED"
        UNDOING = "UNDOING"
        SUCCESSFUL = "SUCCESSFUL"
        FAILED = "FAILED"
        CANCELLED = "CANCELLED"

    id = models.UUIDField(primary_key=True)
    """Of a task: that of its first job. Of the outermost: that of the workflow."""
    workflow_id = models.UUIDField()
    parent_id = models.UUIDField(null=True)
    position = models.IntegerField(default=0)
    """Among those of its parent."""
    kind = models.CharField(max_length=5, choices=Kind.choices)
    role = models.CharField(max_length=5, choices=Role.choices, default=Role.STEP)
    """"undo" and "error" belong to their parent, and are none of its steps."""
    label = models.CharField(max_length=255, default="")
    """The task's dotted path, or the name that it was given."""
    state = models.CharField(max_length=10, choices=State.choices, default=State.PENDING)
    job_id = models.UUIDField(null=True, unique=True)
    """Of a task: its newest job. Chosen when the workflow is made."""
    sealed = models.BinaryField(null=True)
    """What is enqueued when its turn comes; NULL once it is."""
    value = models.BinaryField(null=True)
    """What its job returned, where another step is given that."""
    cause = models.UUIDField(null=True)
    """The job because of which it failed."""
    is_optional = models.BooleanField(default=False)
    """Whether what holds it goes on when it fails."""
    is_wanted = models.BooleanField(default=False)
    """Whether another step is given its value."""
    fails_fast = models.BooleanField(default=False)
    """Of a group: whether the first failure ends it."""
    size = models.IntegerField(default=0)
    """How many steps it holds."""
    at_once = models.IntegerField(null=True)
    """Of a group: how many of its members may be under way."""
    has_more = models.BooleanField(default=False)
    """Of a group: whether members wait for others to end."""
    has_undo = models.BooleanField(default=False)
    """Of a step: it has one. Of a chain: one of its steps has."""
    has_error = models.BooleanField(default=False)
    """Whether something is to be called if it fails."""
    has_added = models.BooleanField(default=False)
    """Of a task: whether it has added steps, which are below it."""
    added_in = models.SmallIntegerField(null=True)
    """In which attempt of that task this one was added."""

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
GROUPS = (Step.Kind.GROUP, Step.Kind.MAP)
