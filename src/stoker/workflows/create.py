"""Create workflows: store nodes as rows, a thousand at a time, in one transaction.

Only the part of a group that is being written is held in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from django.db import transaction

from stoker.brokers.adapters import broker_for
from stoker.compat import InvalidTask, task_backends, task_signals
from stoker.conf import Settings
from stoker.exceptions import InvalidTaskOption, StokerError
from stoker.jobs.enqueue import open_transaction
from stoker.jobs.results import Commitment, fetch_many
from stoker.jobs.running import DJANGOS_OWN
from stoker.jobs.sealing import WORKFLOW, Sealing, carrying, check_backend
from stoker.models import Step, Workflow
from stoker.store.engines.sessions import explained
from stoker.tasks.signatures import ChainNode, GroupNode, MapNode, MemberIterator, Node, Signature
from stoker.values.ids import LINKED, STEP, new_job_id

from .advance import Advance
from .results import WorkflowResult, get_workflow

AT_ONCE = 1000
LONGEST_NAME = 255
MOST_SEALINGS = 1000


@dataclass(frozen=True, slots=True)
class StepPlace:
    """The position of a node in its workflow."""

    parent_id: UUID | None
    position: int = 0
    role: str = Step.Role.STEP
    where: str = ""
    """The position in words, for error messages."""
    is_fed: bool = False
    """Whether a previous step provides a result that this node can receive."""
    is_wanted: bool = False
    """Whether another step receives its result."""
    state: str = Step.State.PENDING
    added_in: int | None = None
    """For a step that a task adds: see ``Step.added_in``, and the id of the run."""
    run_id: UUID | None = None

    def inside(self, own_id: UUID, position: int, words: str) -> StepPlace:
        """Return the position of a child of this node."""
        return StepPlace(
            own_id, position, where=f"{words} in {self.where}" if self.where else words
        )


def make(settings: Settings, node: Node, name: str = "") -> UUID:
    """Store and start a workflow, in the open transaction or a new one. Return its id.

    Raises: see ``Node.enqueue``.
    """
    if len(name) > LONGEST_NAME:
        raise InvalidTaskOption(f"name: {name[:40]!r}... is longer than {LONGEST_NAME} characters.")
    if "\0" in name:
        raise InvalidTaskOption(f"name: {name[:40]!r} has a NUL character, which no name may have.")
    root = node if isinstance(node, ChainNode | GroupNode | MapNode) else ChainNode(steps=(node,))
    alias = settings.database
    _refuse_transaction_elsewhere(alias)
    with explained(alias), transaction.atomic(using=alias):
        maker = Maker(settings, new_job_id())
        maker.add(root, StepPlace(None))
        maker.flush()
        Workflow.objects.using(alias).create(
            id=maker.workflow_id, name=name, backend=settings.alias, tasks=maker.tasks
        )
        Advance(settings).begin(list(Step.objects.using(alias).filter(pk=maker.workflow_id)))
    return maker.workflow_id


def _refuse_transaction_elsewhere(alias: str) -> None:
    """Raise InvalidTask in a transaction of another database, which could not undo the workflow."""
    opened = open_transaction(alias)
    if opened not in (None, alias):
        raise InvalidTask(
            f"A workflow cannot be enqueued inside a transaction of {opened!r}: its steps are "
            f"stored in {alias!r}, and would run even if that transaction is rolled back. Enqueue "
            "a job there whose task has atomic=True and enqueues the workflow, or enqueue the "
            "workflow in transaction.on_commit()."
        )


class Maker:
    """Converts the nodes of a workflow to rows."""

    def __init__(self, settings: Settings, workflow_id: UUID) -> None:
        self.workflow_id = workflow_id
        self.tasks = 0
        """Number of tasks that were added so far."""
        self._settings = settings
        self._broker = broker_for(settings)
        self._steps = Step.objects.using(settings.database)
        self._rows: list[Step] = []
        self._sealings: dict[int, tuple[Any, Sealing]] = {}

    def add(self, node: Node, place: StepPlace) -> UUID:
        """Add a node with its children. Return its id."""
        if node.undo_step is not None and reads(node.undo_step):
            place = replace(place, is_wanted=True)
        match node:
            case Signature():
                return self._add_task(node, place)
            case ChainNode():
                return self._add_chain(node, place)
            case GroupNode() | MapNode():
                return self._add_group(node, place)
        raise InvalidTaskOption(f"{node!r} is not a step of a workflow.")

    def flush(self) -> None:
        """Write the remaining rows."""
        rows, self._rows = self._rows, []
        self._steps.add(rows)

    def _add_task(self, node: Signature, place: StepPlace) -> UUID:
        with _told(place):
            sealing = self._sealing(node.task)
            job_id = new_job_id(STEP | (LINKED if sealing.has_hooks else 0))
            is_error = place.role == Step.Role.ERROR
            receives = ""
            if node.receives and (place.is_fed or is_error):
                receives = "result" if is_error else "value"
            with carrying({WORKFLOW: str(self.workflow_id)}):
                sealed = sealing.seal_step(node, job_id, receives)
        self.tasks += 1
        label = node.task.module_path
        row = self._row(node, place, job_id, Step.Kind.TASK, label)
        row.job_id, row.sealed = job_id, sealed
        self._store(row)
        self._add_company(node, place, job_id)
        return job_id

    def _add_chain(self, node: ChainNode, place: StepPlace) -> UUID:
        own_id = self._own_id(place)
        last = len(node.steps) - 1
        for position, step in enumerate(node.steps):
            is_wanted = place.is_wanted if position == last else reads(node.steps[position + 1])
            inside = place.inside(own_id, position, f"step {position + 1} of the chain")
            is_fed = place.is_fed or position > 0
            self.add(step, replace(inside, is_fed=is_fed, is_wanted=is_wanted))
        kind = Step.Kind.CHORD if node.is_chord else Step.Kind.CHAIN
        row = self._row(node, place, own_id, kind, node.name)
        row.size = len(node.steps)
        row.has_undo = row.has_undo or any(step.undo_step is not None for step in node.steps)
        self._store(row)
        self._add_company(node, place, own_id)
        return own_id

    def _add_group(self, node: GroupNode | MapNode, place: StepPlace) -> UUID:
        own_id = self._own_id(place)
        count = 0
        for position, member in enumerate(node.nodes()):
            if member.undo_step is not None:
                with _told(place):
                    raise InvalidTaskOption(
                        "undo() is for a step of a chain: for the members of a group, call it on "
                        "the group."
                    )
            inside = place.inside(own_id, position, f"member {position + 1} of the group")
            self.add(member, replace(inside, is_fed=place.is_fed, is_wanted=place.is_wanted))
            count += 1
        is_map = isinstance(node, MapNode)
        label = node.task.module_path if isinstance(node, MapNode) else node.name
        row = self._row(node, place, own_id, Step.Kind.MAP if is_map else Step.Kind.GROUP, label)
        row.size = count
        if isinstance(node, GroupNode):
            row.fails_fast, row.at_once = node.fails_fast, node.at_once
        self._store(row)
        self._add_company(node, place, own_id)
        return own_id

    def _add_company(self, node: Node, place: StepPlace, own_id: UUID) -> None:
        """Add the steps for ``undo`` and ``on_error`` of a node."""
        whole = place.where or "the workflow"
        if node.undo_step is not None:
            undo = StepPlace(own_id, role=Step.Role.UNDO, where=f"undo of {whole}", is_fed=True)
            self.add(node.undo_step, undo)
        if node.error_step is not None:
            where = f"on_error of {whole}"
            self.add(node.error_step, StepPlace(own_id, role=Step.Role.ERROR, where=where))

    def _own_id(self, place: StepPlace) -> UUID:
        return self.workflow_id if place.parent_id is None else new_job_id()

    def _row(self, node: Node, place: StepPlace, own_id: UUID, kind: str, label: str) -> Step:
        return Step(
            id=own_id,
            workflow_id=self.workflow_id,
            parent_id=place.parent_id,
            position=place.position,
            kind=kind,
            role=place.role,
            label=(label or node.name)[:LONGEST_NAME],
            state=place.state,
            is_optional=node.is_optional,
            is_wanted=place.is_wanted,
            has_undo=node.undo_step is not None,
            has_error=node.error_step is not None,
            added_in=place.added_in,
            cause=place.run_id,
        )

    def _store(self, row: Step) -> None:
        self._rows.append(row)
        if len(self._rows) >= AT_ONCE:
            self.flush()

    def _sealing(self, task: Any) -> Sealing:
        """Return the sealing of a task object. It is reused, because it checks the task once."""
        known = self._sealings.get(id(task))
        if known is not None:
            return known[1]
        if task.backend != self._settings.alias:
            raise InvalidTask(
                f"{task.module_path} belongs to the backend {task.backend!r}, and the workflow to "
                f"{self._settings.alias!r}: all steps of a workflow must have the same backend."
            )
        check_backend(task, self._broker)
        sealing = Sealing(self._settings, task, Commitment())
        if len(self._sealings) >= MOST_SEALINGS:
            self._sealings.clear()
        self._sealings[id(task)] = (task, sealing)
        return sealing


@contextmanager
def _told(place: StepPlace) -> Iterator[None]:
    """Add the position of the step to errors that are raised in the block."""
    try:
        yield
    except (StokerError, InvalidTask, TypeError) as error:
        if not place.where:
            raise
        text = f"{place.where[0].upper()}{place.where[1:]}: {error}"
        raise type(error)(text) from error


def reads(node: Node) -> bool:
    """Return whether this step receives the previous step's result."""
    match node:
        case Signature(receives=receives):
            return receives
        case ChainNode(steps=steps):
            return reads(steps[0])
        case GroupNode(members=members) if not isinstance(members, MemberIterator):
            return any(reads(member) for member in node.nodes())
    return isinstance(node, GroupNode)


def enqueue(settings: Settings, node: Node, name: str) -> WorkflowResult:
    """Create a workflow from a node. See ``Node.enqueue``."""
    workflow_id = make(settings, node, name)
    _announce(settings, workflow_id)
    return get_workflow(workflow_id, backend=settings.alias)


def _announce(settings: Settings, workflow_id: UUID) -> None:
    """Send Django's signal for the jobs that may start at once, if it has receivers."""
    signal = task_signals.task_enqueued
    if all(receiver[0][0] in DJANGOS_OWN for receiver in signal.receivers):
        return
    steps = Step.objects.using(settings.database).filter(
        workflow_id=workflow_id, kind=Step.Kind.TASK, state=Step.State.ENQUEUED
    )
    job_ids = [one for one in steps.values_list("job_id", flat=True) if one is not None]
    sender = type(task_backends[settings.alias])
    for result in fetch_many(settings, job_ids):
        signal.send_robust(sender, task_result=result)
