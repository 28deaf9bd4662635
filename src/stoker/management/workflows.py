"""``manage.py stoker workflows``: looks at workflows, and steers them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandParser

from stoker.models import Workflow
from stoker.workflows.results import WorkflowResult, WorkflowStep, get_workflow, list_workflows

from .labels import positive
from .subcommand import (
    ExitCode,
    Subcommand,
    SubcommandGroup,
    add_backend,
    as_json,
    backend_settings,
    refuse,
    within_deadlines,
)

MOST_SHOWN = 1000
"""How many steps ``show`` draws. --json has them all."""


class ListWorkflows(Subcommand):
    name = "list"
    summary = "List workflows, the newest first."
    description = """\
List workflows, the newest first: id, state, how many of its tasks are done, name, when it was made.

--json writes one object: workflows[] (id, name, state, made_at, finished_at, reason, progress) and
next (for --after; null on the last page)."""
    examples = """\
  manage.py stoker workflows list
  manage.py stoker workflows list --state FAILED --json | jq '.workflows[].id'"""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--state", choices=list(Workflow.State.values), help="Only these.")
        parser.add_argument(
            "--limit",
            type=positive,
            default=20,
            metavar="N",
            help="Maximum number to show. Default: %(default)s.",
        )
        parser.add_argument(
            "--after",
            metavar="ID",
            help="Continue after a page: each page prints the value for the next one.",
        )
        add_backend(parser)
        parser.add_argument(
            "--json", action="store_true", help="Write one JSON object, as described above."
        )

    def run(self, options: dict[str, Any]) -> ExitCode:
        settings = within_deadlines(backend_settings(options["backend"]))
        limit = options["limit"]
        try:
            found = list_workflows(settings, options["state"], options["after"], limit + 1)
        except ValueError as error:
            raise refuse(f"--after: {error}.") from error
        shown = found[:limit]
        following = shown[-1].id if len(found) > limit else None
        if options["json"]:
            plain = [_as_plain(one) for one in shown]
            self.say(as_json({"workflows": plain, "next": following}))
            return ExitCode.DONE
        for one in shown:
            self.say(_line(one))
        if not shown:
            self.say("none")
        if following:
            self.say(f"more: --after {following}")
        return ExitCode.DONE


class OneWorkflow(Subcommand):
    """A word about one workflow."""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("id", metavar="ID", help="The workflow's.")
        add_backend(parser)
        parser.add_argument("--json", action="store_true", help="Write one object.")

    def found(self, options: dict[str, Any]) -> WorkflowResult:
        """Raises WorkflowNotFound."""
        settings = within_deadlines(backend_settings(options["backend"]))
        return get_workflow(options["id"], backend=settings.alias)


class Show(OneWorkflow):
    name = "show"
    summary = "Show one workflow: its steps as a tree, with their jobs."
    description = """\
Show one workflow: its steps as a tree, each with its state, its task and its job.

--json writes one object, as `list` does, with steps[] (id, parent_id, position, kind, role, state,
label, job_id)."""
    examples = """\
  manage.py stoker workflows show 01a1ff39-c590-74bd-a696-c9f6aa2ea038
  manage.py stoker workflows show ID --json | jq '.steps[] | select(.state == "FAILED")'"""

    def run(self, options: dict[str, Any]) -> ExitCode:
        workflow = self.found(options)
        steps = list(workflow.steps())
        if options["json"]:
            self.say(as_json({**_as_plain(workflow), "steps": [asdict(one) for one in steps]}))
            return ExitCode.DONE
        self.say(_line(workflow))
        if workflow.reason:
            self.say(f"reason: {workflow.reason}")
        for number, line in enumerate(_tree(steps)):
            if number == MOST_SHOWN:
                self.say(f"... and {len(steps) - number:,} more: --json has them all")
                break
            self.say(line)
        return ExitCode.DONE


class Cancel(OneWorkflow):
    name = "cancel"
    summary = "End a workflow: what waits is cancelled, what runs is told to end."
    description = "End a workflow. Jobs that wait are cancelled, those that run are told to end."
    examples = """\
  manage.py stoker workflows cancel 01a1ff39-c590-74bd-a696-c9f6aa2ea038 --because "wrong file\""""

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--because", default="", metavar="TEXT", help="Kept with it.")

    def run(self, options: dict[str, Any]) -> ExitCode:
        workflow = self.found(options)
        is_cancelled = workflow.cancel(options["because"])
        if options["json"]:
            self.say(as_json({**_as_plain(workflow), "cancelled": is_cancelled}))
        elif is_cancelled:
            self.say(f"Workflow {workflow.id} is cancelled.")
        else:
            self.remark(f"Workflow {workflow.id} has ended already: it is {workflow.status}.")
        return ExitCode.DONE if is_cancelled else ExitCode.NO


class Retry(OneWorkflow):
    name = "retry"
    summary = "Let a workflow go on from the steps that failed or were cancelled."
    description = """\
Let a workflow go on: the jobs of the steps that failed or were cancelled are sent again, and what
had not begun because of them begins. What was undone stays so."""
    examples = """\
  manage.py stoker workflows retry 01a1ff39-c590-74bd-a696-c9f6aa2ea038"""

    def run(self, options: dict[str, Any]) -> ExitCode:
        workflow = self.found(options)
        count = workflow.retry(by="manage.py stoker workflows retry")
        if options["json"]:
            self.say(as_json({**_as_plain(workflow), "sent": count}))
        elif count:
            self.say(f"{count:,} jobs are sent again; workflow {workflow.id} goes on.")
        else:
            self.remark(f"Nothing to send again: workflow {workflow.id} is {workflow.status}.")
        return ExitCode.DONE if count else ExitCode.NO


class Workflows(SubcommandGroup):
    name = "workflows"
    summary = "Look at workflows; cancel them, or let them go on."
    description = "Look at workflows (chains, groups, chords); cancel them, or let them go on."
    examples = """\
  manage.py stoker workflows list --state FAILED
  manage.py stoker workflows show ID
  manage.py stoker workflows retry ID"""
    parts = (ListWorkflows, Show, Cancel, Retry)


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


def _line(workflow: WorkflowResult) -> str:
    progress = workflow.progress()
    ended = progress.successful + progress.failed + progress.cancelled
    made = workflow.made_at.strftime("%Y-%m-%d %H:%M:%S")
    name = f"  {workflow.name}" if workflow.name else ""
    return f"{workflow.id}  {workflow.status:10}  {ended:,}/{progress.total:,} done  {made}{name}"


def _tree(steps: Sequence[WorkflowStep]) -> Iterator[str]:
    below: dict[str | None, list[WorkflowStep]] = {}
    for step in steps:
        below.setdefault(step.parent_id, []).append(step)

    def lines(parent_id: str | None, depth: int) -> Iterator[str]:
        for step in sorted(below.get(parent_id, []), key=lambda one: (one.role, one.position)):
            role = "" if step.role == "step" else f"{step.role}: "
            what = step.label if step.kind == "task" else f"{step.kind} {step.label}".rstrip()
            job = f"  {step.job_id}" if step.job_id else ""
            yield f"{'  ' * depth}{role}{what}  {step.state}{job}"
            yield from lines(step.id, depth + 1)

    return lines(None, 1)
