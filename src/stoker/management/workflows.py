"""``manage.py stoker workflows``: list and show workflows and their steps; cancel and retry
them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields, replace
from itertools import islice
from typing import Any
from uuid import UUID

from stoker.inspect.steps import SHOWN, TimedStep, timed_steps
from stoker.models import Workflow
from stoker.operations import bulk, steps
from stoker.operations.operation import Done
from stoker.operations.wording import first_line, since
from stoker.operations.workflows import CANCEL, RETRY, find, workflow_as_plain
from stoker.values.durations import in_words
from stoker.values.text import plural
from stoker.workflows.results import (
    WorkflowProgress,
    WorkflowResult,
    WorkflowStep,
    count_tasks,
    get_workflow,
)

from .subcommand import (
    BACKEND,
    CHANGE_OPTIONS,
    JSON,
    PAGE_OPTIONS,
    ExitCode,
    Subcommand,
    SubcommandGroup,
    option,
)

MOST_SHOWN = 1000
"""Maximum number of steps that ``show`` reads."""
STEP_COLUMNS = [one.name for one in fields(TimedStep) if one.name not in ("spans", "package")]
ID = option("id", metavar="ID", help="The id of the workflow.")
ROLES = {"step": "", "undo": "undo: ", "error": "on_error: "}
"""Role of a step -> prefix of its task in lists."""


class ListWorkflows(Subcommand):
    """List workflows, the newest first.

    List workflows, the newest first: id, state, name, number of finished tasks, time of creation,
    and reason of a failure or cancellation. With a filter a page searches 10,000 workflows.

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
        option(
            "--search",
            dest="text",
            default="",
            metavar="TEXT",
            help="Only workflows with this text in the name or the reason, or with this id or a "
            "job of this id.",
        ),
        *PAGE_OPTIONS,
    )

    def run(self, options: dict[str, Any]) -> ExitCode:
        settings, most = self.settings(options), options["limit"]
        wanted = {"state": options["state"] or "", "text": options["text"].strip()}
        page = find(settings, most, options["after"] or "", **wanted)
        progress = count_tasks(settings, page.rows)
        shown = [(WorkflowResult(row), progress[row.pk]) for row in page.rows]
        lines = [line for one in shown for line in _lines_of(*one)]
        if not shown:
            hint = "No workflows. Enqueue one: chain(...).enqueue()"
            lines = ["No such workflows." if any(wanted.values()) else hint]
        if page.next is not None:
            why = "Search further back" if page.is_cut else "The next page"
            lines.append(f"{why}: --after {page.next}")
        plain = {"workflows": [workflow_as_plain(*one) for one in shown], "next": page.next}
        self.answer(options, plain, lines)
        return ExitCode.DONE


class ShowWorkflow(Subcommand):
    """Show one workflow: its steps as a tree, with their jobs.

    Show one workflow: its steps as a tree, each with its state, its task and its job. Of a larger
    workflow only the first 1,000 steps are shown; `workflows steps` pages through all tasks, the
    failed ones first.

    --json writes one object, as `list` does, with steps[] (id, parent_id, position, kind, role,
    state, label, job_id) and has_more.

    Examples:
      manage.py stoker workflows show 01a1ff39-c590-74bd-a696-c9f6aa2ea038
      manage.py stoker workflows show ID --json | jq '.steps[] | select(.state == "FAILED")'
    """

    name = "show"
    options = (ID, BACKEND, JSON)

    def run(self, options: dict[str, Any]) -> ExitCode:
        workflow = get_workflow(options["id"], backend=self.settings(options).alias)
        found = list(islice(workflow.steps(), MOST_SHOWN + 1))
        steps, has_more = found[:MOST_SHOWN], len(found) > MOST_SHOWN
        plain = {"steps": [asdict(one) for one in steps], "has_more": has_more}
        more = [f"... and more: stoker workflows steps {workflow.id}"] if has_more else []
        progress = workflow.progress()
        lines = [*_lines_of(workflow, progress), *_tree(steps), *more]
        self.answer(options, {**workflow_as_plain(workflow, progress), **plain}, lines)
        return ExitCode.DONE


class ListSteps(Subcommand):
    """List the tasks of a workflow with their times, failed ones first.

    List the tasks of a workflow: failed, cancelled, under way, successful, pending; each with its
    state, its duration, its job and its dead letter.

    --json writes one object: steps[] (id, parent_id, role, state, label, job_id, enqueued_at,
    started_at, finished_at, attempts, wait_seconds, run_seconds, is_running, dead_letter_id,
    can_retry, earlier[] (job_id, status, enqueued_at, finished_at: at most 3 jobs before the newest
    one)), counts (state -> number of tasks) and next (for --after; null on the last page).

    Examples:
      manage.py stoker workflows steps 01a1ff39-c590-74bd-a696-c9f6aa2ea038
      manage.py stoker workflows steps ID --state failed --json | jq -r '.steps[].id'
    """

    name = "steps"
    options = (
        ID,
        option(
            "--state",
            type=str.upper,
            choices=list(SHOWN),
            default="",
            metavar="STATE",
            help=f"Only this state: {', '.join(SHOWN).lower()}.",
        ),
        *PAGE_OPTIONS,
    )

    def run(self, options: dict[str, Any]) -> ExitCode:
        settings = self.settings(options)
        workflow = get_workflow(options["id"], backend=settings.alias)
        state, after, most = options["state"], options["after"] or "", options["limit"]
        page = timed_steps(settings, UUID(workflow.id), state, after, most)
        counts = [f"{page.counts[one]:,} {one.lower()}" for one in SHOWN if one in page.counts]
        lines = [", ".join(counts), *(line for one in page.steps for line in _lines_of_step(one))]
        lines += [f"Next page: --after {page.next}"] if page.next else []
        plain = [{name: getattr(one, name) for name in STEP_COLUMNS} for one in page.steps]
        self.answer(options, {"steps": plain, "counts": page.counts, "next": page.next}, lines)
        return ExitCode.DONE


class _ChangeWorkflow(Subcommand):
    def tell(self, options: dict[str, Any], done: Done, **plain: Any) -> ExitCode:
        """Write the answer. A refusal is written to standard error."""
        if done.is_good or options["json"]:
            self.answer(options, {**workflow_as_plain(done.value), **plain}, [done.sentence])
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
    options = (ID, *CHANGE_OPTIONS)

    def run(self, options: dict[str, Any]) -> ExitCode:
        done = CANCEL.perform(self.operator(options), options["id"])
        return self.tell(options, done, cancelled=done.is_good)


class RetryWorkflow(_ChangeWorkflow):
    """Continue a workflow from the steps that failed or were cancelled.

    Continue a workflow: the jobs of the steps that failed or were cancelled are enqueued again, and
    the steps that waited for them start. Steps that were undone are not run again. With --step only
    one step is retried, even while other steps run.

    Examples:
      manage.py stoker workflows retry 01a1ff39-c590-74bd-a696-c9f6aa2ea038
      manage.py stoker workflows retry ID --step 01a1ff39-c590-7a51-9c35-2f4b8b3a7c10
    """

    name = "retry"
    options = (
        ID,
        option(
            "--step",
            metavar="STEP",
            help="Only this step: its id, or that of its job (see `workflows steps`).",
        ),
        *CHANGE_OPTIONS,
    )

    def run(self, options: dict[str, Any]) -> ExitCode:
        operator = self.operator(options)
        if options["step"]:
            done = steps.RETRY.perform(operator, options["step"], workflow=options["id"])
            return self.tell(options, done, sent=done.facts["sent"])
        done = RETRY.perform(operator, options["id"])
        sent = done.facts["sent"]
        if done.is_good:
            row = bulk.finish(operator, done.value)
            sentence, sent = bulk.sum_up(operator.settings, row).sentence, row.done
            done = replace(done, sentence=f"The workflow continues: {sentence}")
        workflow = get_workflow(options["id"], backend=operator.alias)
        return self.tell(options, replace(done, value=workflow), sent=sent)


class UndoRetry(_ChangeWorkflow):
    """Undo the retry of a step whose job has not begun.

    Undo the retry of one step. Its new job is cancelled, and the step has failed again. A job that
    has started continues.

    Examples:
      manage.py stoker workflows undo ID --step 01a1ff39-c590-7a51-9c35-2f4b8b3a7c10
    """

    name = "undo"
    options = (
        ID,
        option(
            "--step",
            required=True,
            metavar="STEP",
            help="The step: its id, or that of its newest job (see `workflows steps`).",
        ),
        *CHANGE_OPTIONS,
    )

    def run(self, options: dict[str, Any]) -> ExitCode:
        operator = self.operator(options)
        done = steps.UNDO.perform(operator, options["step"], workflow=options["id"])
        return self.tell(options, done, undone=done.is_good)


class WorkflowsCommand(SubcommandGroup):
    """List and show workflows; cancel or retry them.

    List and show workflows (chains, groups, chords) and their steps; cancel or retry them.

    Examples:
      manage.py stoker workflows list --state failed
      manage.py stoker workflows show ID
      manage.py stoker workflows retry ID
    """

    name = "workflows"
    parts = (ListWorkflows, ShowWorkflow, ListSteps, CancelWorkflow, RetryWorkflow, UndoRetry)


def _lines_of(workflow: WorkflowResult, progress: WorkflowProgress) -> Iterator[str]:
    ended = progress.successful + progress.failed + progress.cancelled
    yield f"{workflow.id}  {workflow.status.lower()}"
    if workflow.name:
        yield f"  {workflow.name}"
    done = f"{ended:,} of {plural(progress.total, 'task')} done"
    yield f"  {done}, created {since(workflow.made_at)}"
    if workflow.reason:
        yield f"  {first_line(workflow.reason, 56)}"


def _lines_of_step(step: TimedStep) -> Iterator[str]:
    """Yield the lines of one task: state and times, task, ids."""
    yield f"{step.id}  {'running' if step.is_running else step.state.lower()}"
    yield f"  {ROLES[step.role]}{step.label}"
    if step.wait_seconds is not None:
        ran = f", ran {in_words(step.run_seconds)}" if step.run_seconds is not None else ""
        yield f"  waited {in_words(step.wait_seconds)}{ran}"
    if step.job_id is not None and step.job_id != step.id:
        yield f"  job {step.job_id}"
    for job in step.earlier:
        yield f"  earlier job {job.job_id} {job.status.lower()}"
    if step.dead_letter_id is not None:
        yield f"  dead letter {step.dead_letter_id}"


def _tree(steps: Sequence[WorkflowStep]) -> Iterator[str]:
    below: dict[str | None, list[WorkflowStep]] = {}
    for step in steps:
        below.setdefault(step.parent_id, []).append(step)

    def lines(parent_id: str | None, depth: int) -> Iterator[str]:
        for step in sorted(below.get(parent_id, []), key=lambda one: (one.role, one.position)):
            what = step.label if step.kind == "task" else f"{step.kind} {step.label}".rstrip()
            yield f"{'  ' * depth}{ROLES[step.role]}{what}  {step.state.lower()}"
            if step.job_id:
                yield f"{'  ' * depth}  {step.job_id}"
            yield from lines(step.id, depth + 1)

    return lines(None, 1)
