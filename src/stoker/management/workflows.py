"""``manage.py stoker workflows``: list and show workflows; cancel and retry them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from stoker.models import Workflow
from stoker.operations.operation import Done, Operation
from stoker.operations.wording import first_line, since
from stoker.operations.workflows import CANCEL, RETRY
from stoker.workflows.results import WorkflowResult, WorkflowStep, get_workflow, list_workflows

from .subcommand import (
    AFTER,
    BACKEND,
    BECAUSE,
    BY,
    JSON,
    ExitCode,
    Subcommand,
    SubcommandGroup,
    limit,
    option,
    refuse,
)

MOST_SHOWN = 1000
"""Maximum number of steps that ``show`` draws. With --json there is no limit."""
ID = option("id", metavar="ID", help="The id of the workflow.")


class ListWorkflows(Subcommand):
    """List workflows, the newest first.

    List workflows, the newest first: id, state, name, number of finished tasks, time of creation,
    and reason of a failure or cancellation.

    --json writes one object: workflows[] (id, name, state, made_at, finished_at, reason, progress)
    and next (for --after; null on the last page).

    Examples:
      manage.py stoker workflows list
      manage.py stoker workflows list --state failed --json | jq '.workflows[].id'
    """

    name = "list"
    options = (
        option(
            "--state",
            type=str.upper,
            choices=list(Workflow.State.values),
            metavar="STATE",
            help=f"Only this state: {', '.join(Workflow.State.values).lower()}.",
        ),
        limit(20),
        AFTER,
        BACKEND,
        JSON,
    )

    def run(self, options: dict[str, Any]) -> ExitCode:
        settings, most = self.settings(options), options["limit"]
        try:
            found = list_workflows(settings, options["state"], options["after"], most + 1)
        except ValueError as error:
            raise refuse(f"--after: {error}.") from error
        shown = found[:most]
        after = shown[-1].id if len(found) > most else None
        lines = [line for one in shown for line in _lines_of(one)]
        lines += [f"The next page: --after {after}"] if after else []
        if not shown:
            hint = "No workflows. Enqueue one: chain(...).enqueue()"
            lines = ["No such workflows." if options["state"] else hint]
        self.answer(options, {"workflows": [_as_plain(one) for one in shown], "next": after}, lines)
        return ExitCode.DONE


class ShowWorkflow(Subcommand):
    """Show one workflow: its steps as a tree, with their jobs.

    Show one workflow: its steps as a tree, each with its state, its task and its job.

    --json writes one object, as `list` does, with steps[] (id, parent_id, position, kind, role,
    state, label, job_id).

    Examples:
      manage.py stoker workflows show 01a1ff39-c590-74bd-a696-c9f6aa2ea038
      manage.py stoker workflows show ID --json | jq '.steps[] | select(.state == "FAILED")'
    """

    name = "show"
    options = (ID, BACKEND, JSON)

    def run(self, options: dict[str, Any]) -> ExitCode:
        workflow = get_workflow(options["id"], backend=self.settings(options).alias)
        steps = list(workflow.steps())
        plain = {**_as_plain(workflow), "steps": [asdict(one) for one in steps]}
        self.answer(options, plain, self._lines(workflow, steps))
        return ExitCode.DONE

    def _lines(self, workflow: WorkflowResult, steps: Sequence[WorkflowStep]) -> Iterator[str]:
        yield from _lines_of(workflow)
        for number, line in enumerate(_tree(steps)):
            if number == MOST_SHOWN:
                yield f"... and {len(steps) - number:,} more: --json has all"
                break
            yield line


class _ChangeWorkflow(Subcommand):
    def change(self, options: dict[str, Any], operation: Operation) -> Done:
        """Perform the operation on the named workflow."""
        return operation.perform(self.operator(options), options["id"])

    def tell(self, options: dict[str, Any], done: Done, **plain: Any) -> ExitCode:
        """Write the answer. A refusal is written to standard error."""
        if done.is_good or options["json"]:
            self.answer(options, {**_as_plain(done.value), **plain}, [done.sentence])
        else:
            self.remark(done.sentence)
        return ExitCode.DONE if done.is_good else ExitCode.NO


class CancelWorkflow(_ChangeWorkflow):
    """Cancel a workflow.

    Cancel a workflow. Waiting jobs are cancelled, running jobs are asked to end.

    Examples:
      manage.py stoker workflows cancel 01a1ff39-c590-74bd-a696-c9f6aa2ea038 --because "wrong file"
    """

    name = "cancel"
    options = (ID, BY, BECAUSE, BACKEND, JSON)

    def run(self, options: dict[str, Any]) -> ExitCode:
        done = self.change(options, CANCEL)
        return self.tell(options, done, cancelled=done.is_good)


class RetryWorkflow(_ChangeWorkflow):
    """Continue a workflow from the steps that failed or were cancelled.

    Continue a workflow: the jobs of the steps that failed or were cancelled are enqueued again, and
    the steps that waited for them start. Steps that were undone are not run again.

    Examples:
      manage.py stoker workflows retry 01a1ff39-c590-74bd-a696-c9f6aa2ea038
    """

    name = "retry"
    options = (ID, BY, BACKEND, JSON)

    def run(self, options: dict[str, Any]) -> ExitCode:
        done = self.change(options, RETRY)
        return self.tell(options, done, sent=done.facts["sent"])


class WorkflowsCommand(SubcommandGroup):
    """List and show workflows; cancel or retry them.

    List and show workflows (chains, groups, chords); cancel or retry them.

    Examples:
      manage.py stoker workflows list --state failed
      manage.py stoker workflows show ID
      manage.py stoker workflows retry ID
    """

    name = "workflows"
    parts = (ListWorkflows, ShowWorkflow, CancelWorkflow, RetryWorkflow)


def _as_plain(workflow: WorkflowResult) -> dict[str, Any]:
    return {
        "id": workflow.id,
        "name": workflow.name,
        "state": workflow.status,
        "made_at": workflow.made_at,
        "finished_at": workflow.finished_at,
        "reason": workflow.reason,
        "progress": asdict(workflow.progress()),
    }


def _lines_of(workflow: WorkflowResult) -> Iterator[str]:
    progress = workflow.progress()
    ended = progress.successful + progress.failed + progress.cancelled
    yield f"{workflow.id}  {workflow.status.lower()}"
    if workflow.name:
        yield f"  {workflow.name}"
    done = f"{ended:,} of {progress.total:,} tasks done"
    yield f"  {done}, created {since(workflow.made_at)}"
    if workflow.reason:
        yield f"  {first_line(workflow.reason, 56)}"


def _tree(steps: Sequence[WorkflowStep]) -> Iterator[str]:
    below: dict[str | None, list[WorkflowStep]] = {}
    for step in steps:
        below.setdefault(step.parent_id, []).append(step)

    def lines(parent_id: str | None, depth: int) -> Iterator[str]:
        for step in sorted(below.get(parent_id, []), key=lambda one: (one.role, one.position)):
            role = "" if step.role == "step" else f"{step.role}: "
            what = step.label if step.kind == "task" else f"{step.kind} {step.label}".rstrip()
            yield f"{'  ' * depth}{role}{what}  {step.state.lower()}"
            if step.job_id:
                yield f"{'  ' * depth}  {step.job_id}"
            yield from lines(step.id, depth + 1)

    return lines(None, 1)
