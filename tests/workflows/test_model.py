"""Random workflows compared with a small interpreter that has no jobs, rows or transactions.

The test compares which steps ran, their arguments and the outcome of the workflow. The store
chooses the order of the steps, and some run twice: a cluster may die after it ran a job, so that
another runs the job again.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from stoker import chain, current_workflow, get_workflow, group, task
from stoker.conf import settings_for
from stoker.jobs.outcomes import Attempted
from stoker.jobs.package import sealer_for
from stoker.models import Step
from stoker.models.step import UNDER_WAY
from stoker.tasks.signatures import ChainNode, GroupNode, Node, Signature

from tests.workflows.runner import Runner, StepByStep
from tests.workflows.tasks import DONE, FAILING, say

pytestmark = pytest.mark.django_db

NOTHING = "nothing"


@task(max_attempts=1)
def add_and_say(*given: Any) -> str:
    """Add a step, and do the same as ``say``."""
    current_workflow().add(say.s(f"{given[-1]} added"))
    return say.call(*given)


@dataclass
class World:
    """The input of the interpreter and its actions."""

    failing: set[str]
    done: list[Any] = field(default_factory=list)

    def run(self, node: Node, given: Any) -> tuple[bool, Any]:
        """Return whether the node succeeds, and its result."""
        is_good, value = self._run(node, given)
        if not is_good and node.error_step is not None:
            self.run(node.error_step, NOTHING)
        return is_good, value

    def _run(self, node: Node, given: Any) -> tuple[bool, Any]:
        match node:
            case Signature():
                return self._call(node, given)
            case ChainNode():
                return self._chain(node, given)
            case GroupNode():
                results = [(member, *self.run(member, given)) for member in node.nodes()]
                is_good = all(good or member.is_optional for member, good, _ in results)
                return is_good, [value for _, _, value in results] if is_good else None
        raise AssertionError(node)

    def _call(self, node: Signature, given: Any) -> tuple[bool, Any]:
        name = node.args[-1]
        received = given if node.receives and given is not NOTHING else NOTHING
        self.done.append((name, received))
        if node.task is add_and_say:
            self.done.append((f"{name} added", name))
            return True, f"{name} added"
        return name not in self.failing, name if name not in self.failing else None

    def _chain(self, node: ChainNode, given: Any) -> tuple[bool, Any]:
        succeeded: list[tuple[Node, Any]] = []
        value = given
        for step in node.steps:
            is_good, value = self.run(step, value)
            if is_good:
                succeeded.append((step, value))
            elif not step.is_optional:
                for done, result in reversed(succeeded):
                    if done.undo_step is not None:
                        self.run(done.undo_step, result)
                return False, None
        return True, value


@st.composite
def nodes(draw: st.DrawFn, depth: int = 3) -> Node:
    """Draw a node of any kind."""
    kind = draw(st.sampled_from(["task", "task", "chain", "group"] if depth else ["task"]))
    node: Node
    if kind == "task":
        node = Signature(task=say, args=("?",), receives=draw(st.booleans()))
    else:
        members = draw(st.lists(nodes(depth=depth - 1), min_size=kind == "chain", max_size=4))
        if kind == "group":
            node = group([without_undo(one) for one in members])
        else:
            node = chain(*[with_undo(draw, one) for one in members])
    if draw(st.integers(0, 5)) == 0:
        node = node.optional()
    if draw(st.integers(0, 5)) == 0:
        node = node.on_error(say.si("?"))
    return node


def with_undo(draw: st.DrawFn, node: Node) -> Node:
    if draw(st.integers(0, 3)):
        return node
    return node.undo(Signature(task=say, args=("?",), receives=draw(st.booleans())))


def without_undo(node: Node) -> Node:
    return replace(node, undo_step=None)


def drawn(node: Any) -> str:
    """Return a short text for a node."""
    match node:
        case Signature():
            text = f"{node.args[0]}{'' if node.receives else 'i'}"
        case ChainNode():
            text = f"chain({', '.join(map(drawn, node.steps))})"
        case _:
            text = f"group({', '.join(map(drawn, node.nodes()))})"
    text += "?" if node.is_optional else ""
    text += f" undo {drawn(node.undo_step)}" if node.undo_step else ""
    return text + (f" error {drawn(node.error_step)}" if node.error_step else "")


def named(node: Node, counter: list[int]) -> Node:
    """Return a copy in which each leaf has its own name."""
    changes: dict[str, Any] = {}
    match node:
        case Signature():
            counter[0] += 1
            changes["args"] = (f"s{counter[0]}",)
        case ChainNode(steps=steps):
            changes["steps"] = tuple(named(step, counter) for step in steps)
        case GroupNode(members=members):
            changes["members"] = tuple(named(member, counter) for member in members)
    for name in ("undo_step", "error_step"):
        company = getattr(node, name)
        if company is not None:
            changes[name] = named(company, counter)
    return replace(node, **changes)


@given(nodes(), st.integers(0, 2**32), st.sampled_from([0.0, 0.1, 0.3]))
@settings(
    max_examples=int(os.environ.get("STOKER_TEST_EXAMPLES", "8")),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
def test_random_workflows_agree_with_the_model(
    node: Node, number: int, failure_rate: float
) -> None:
    DONE.clear()
    FAILING.clear()
    counter = [0]
    node = named(node, counter)
    chance = random.Random(number)
    FAILING.update(f"s{n + 1}" for n in range(counter[0]) if chance.random() < failure_rate)
    note(f"{drawn(node)}; failing: {sorted(FAILING)}")
    world = World(set(FAILING))
    is_good, value = world.run(node, NOTHING)
    if not isinstance(node, ChainNode | GroupNode) and node.is_optional:
        is_good = True  # a single step is a chain of one
    workflow = node.enqueue()
    runner = Runner(chance, chance.choice([0.0, 0.2]))
    runner.run()
    workflow = get_workflow(workflow.id)
    assert _counted(DONE) - _counted(world.done) == _counted(again(runner, world))
    assert not _counted(world.done) - _counted(DONE)
    assert workflow.status == ("SUCCESSFUL" if is_good else "FAILED")
    if is_good:
        assert workflow.value == value


def stopping(node: Node, chance: random.Random, undo_rate: float) -> Node:
    """Return a copy in which some steps of chains have undos, and most groups stop at their first
    failure."""
    changes: dict[str, Any] = {}
    match node:
        case ChainNode(steps=steps):
            steps = tuple(stopping(step, chance, undo_rate) for step in steps)
            undo = Signature(task=say, args=("?",))
            changes["steps"] = tuple(
                replace(step, undo_step=undo) if chance.random() < undo_rate else step
                for step in steps
            )
        case GroupNode():
            changes["members"] = tuple(stopping(one, chance, undo_rate) for one in node.nodes())
            changes["fails_fast"] = chance.random() < 0.7
            changes["at_once"] = chance.choice([None, None, 1, 2])
    return replace(node, **changes)


@given(st.lists(nodes(), min_size=2, max_size=3), st.integers(0, 2**32))
@settings(
    max_examples=int(os.environ.get("STOKER_TEST_EXAMPLES", "8")),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
def test_random_workflows_that_stop_end_and_undo_each_finished_step(
    members: list[Node], number: int
) -> None:
    DONE.clear()
    FAILING.clear()
    chance, counter = random.Random(number), [0]
    node = group([without_undo(one) for one in members])
    node = named(stopping(node, chance, chance.choice([0.0, 0.6])), counter)
    FAILING.update(f"s{n + 1}" for n in range(counter[0]) if chance.random() < 0.2)
    note(f"{drawn(node)}; failing: {sorted(FAILING)}")
    workflow = node.enqueue()
    runner = Runner(chance, 0.0)
    runner.run()
    rows = list(Step.objects.filter(workflow_id=workflow.id))
    assert not [one for one in rows if one.state in UNDER_WAY]
    assert get_workflow(workflow.id).is_finished
    failed = {one.pk for one in rows if one.state in ("FAILED", "CANCELLED")}
    finished = {one.pk for one in rows if one.parent_id in failed and one.state == "SUCCESSFUL"}
    undos = [one for one in rows if one.role == "undo" and one.parent_id in finished]
    assert not [one for one in undos if one.state == "PENDING"]
    assert len({name for name, _ in DONE}) == len(DONE), "each step ran once"
    workflow.refresh()
    undone = [one for one in rows if one.role == "undo" and one.state != "PENDING"]
    if workflow.status == "FAILED" and not undone:
        FAILING.clear()
        assert workflow.retry()
        runner.run()
        assert get_workflow(workflow.id).status == "SUCCESSFUL"


@given(nodes(), st.integers(0, 2**32))
@settings(
    max_examples=int(os.environ.get("STOKER_TEST_EXAMPLES", "8")),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
def test_random_workflows_that_were_cancelled_succeed_after_a_retry(
    node: Node, number: int
) -> None:
    DONE.clear()
    FAILING.clear()
    chance = random.Random(number)
    node = adding(named(node, [0]), chance)
    note(drawn(node))
    world = World(set())
    _, value = world.run(node, NOTHING)
    workflow, hand = node.enqueue(), StepByStep()
    for _ in range(chance.randint(1, 3)):
        for _ in range(chance.randint(0, 4)):
            if hand.claim() or hand.running:
                hand.end(*chance.sample(sorted(hand.running), chance.randint(1, len(hand.running))))
        hand.claim()
        workflow.refresh()
        was_cancelled = workflow.cancel()
        hand.end(*hand.running)
        workflow.refresh()
        assert bool(workflow.retry()) == was_cancelled
    hand.run_all()
    workflow.refresh()
    assert (workflow.status, workflow.value) == ("SUCCESSFUL", value)
    assert _counted(DONE) == _counted(world.done), "each step ran once"


def adding(node: Node, chance: random.Random) -> Node:
    """Return a copy without optional steps and callbacks, in which some tasks add a step."""
    changes: dict[str, Any] = {"is_optional": False, "error_step": None, "undo_step": None}
    match node:
        case Signature() if chance.random() < 0.3:
            changes["task"] = add_and_say
        case ChainNode(steps=steps):
            changes["steps"] = tuple(adding(step, chance) for step in steps)
        case GroupNode():
            changes["members"] = tuple(adding(one, chance) for one in node.nodes())
            changes["fails_fast"] = chance.random() < 0.5
            changes["at_once"] = chance.choice([None, None, 1, 2])
    return replace(node, **changes)


def again(runner: Runner, world: World) -> list[Any]:
    """Return the steps that ran again because their outcome was lost."""
    by_name = dict(world.done)
    names = [sealed_name(one) for one in runner.lost]
    return [(name, by_name[name]) for name in names]


def sealed_name(lost: Attempted) -> str:
    package = sealer_for(settings_for()).open(lost.delivery.package)
    return str(package.args[-1])


def _counted(done: list[Any]) -> Counter[str]:
    return Counter(map(repr, done))
