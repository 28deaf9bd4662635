"""``manage.py stoker bulk``: operations on many jobs or dead letters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from stoker.models import BulkOperation
from stoker.operations import bulk
from stoker.operations.bulk_walk import BY_NAME
from stoker.operations.operation import Operation
from stoker.operations.wording import since
from stoker.store.counting import Number

from .arguments import json_of
from .subcommand import (
    BACKEND,
    CHANGE_OPTIONS,
    DRY_RUN,
    JSON,
    NODE,
    PAGE_OPTIONS,
    QUEUE,
    TASK,
    ExitCode,
    Subcommand,
    SubcommandGroup,
    option,
    refuse,
)

COLUMNS = (
    "id", "operation", "state", "matched", "is_counted", "done", "refused", "by", "because",
    "filters", "started_at", "ended_at", "undoes",
)  # fmt: skip
ID = option("id", metavar="ID", help="The id of the bulk operation: a UUID.")


def as_plain(row: BulkOperation) -> dict[str, Any]:
    """Return a bulk operation as a dictionary for JSON."""
    return {name: getattr(row, name) for name in COLUMNS}


class StartBulk(Subcommand):
    """Start an operation on all matching jobs or dead letters.

    Start an operation on all jobs, or open dead letters, that match the filters. Clusters run it
    in the background; with --wait this command runs it. Without a filter, --all is needed. Jobs
    that wait at a broker outside the database are included only after their first attempt has
    ended. `stoker clear` cancels all jobs that wait in a queue, and `jobs cancel` single ones.

    Exit code 1 with --wait: some targets were not changed, or the operation was paused or stopped.
    Without --wait the exit code is 0 when it is started: `bulk show` says how it ended.

    --json writes one object: id, operation, state, matched, is_counted, done, refused, by, because,
    filters, started_at, ended_at, undoes.

    Examples:
      manage.py stoker bulk start move-job --task shop.tasks.charge --to slow
      manage.py stoker bulk start requeue-letter --search refused --arguments '{"to": "bob"}'
      manage.py stoker bulk start discard-letter --fingerprint 5f0c1e --dry-run
    """

    name = "start"
    options = (
        option("operation", choices=tuple(BY_NAME), metavar="OPERATION", help=", ".join(BY_NAME)),
        option("--state", default="", metavar="STATE", help="Only jobs of this state."),
        option(
            "--search",
            dest="q",
            default="",
            metavar="TEXT",
            help="Only jobs that this search finds, as in `jobs list`.",
        ),
        TASK,
        QUEUE,
        NODE,
        option(
            "--since",
            default="",
            metavar="MOMENT",
            help="Only since this time: an age, such as 2h, or a time, such as 2030-01-31T06:00.",
        ),
        option("--until", default="", metavar="MOMENT", help="Only before this time, as --since."),
        option(
            "--fingerprint",
            default="",
            metavar="FAULT",
            help="Only dead letters with this fingerprint of a fault.",
        ),
        option("--reason", default="", metavar="REASON", help="Only dead letters of this reason."),
        option(
            "--workflow",
            default="",
            metavar="WORKFLOW",
            help="For retry-step: the id of the workflow whose failed steps are retried.",
        ),
        option(
            "--all",
            action="store_true",
            help="Allow the operation to run without a filter, on all targets.",
        ),
        option("--to", default="", metavar="QUEUE", help="For move-job: the new queue."),
        option(
            "--priority",
            default="",
            metavar="N",
            help="For prioritise-job: the new priority, from -100 to 100.",
        ),
        option(
            "--run-after",
            default="",
            metavar="MOMENT",
            help="For reschedule-job: the new start time, such as 2h or 2030-01-31T06:00.",
        ),
        option(
            "--arguments",
            type=json_of(dict),
            metavar="JSON",
            help="For requeue-letter and edit-job: new values by name. "
            '"{order_id}" stands for an old argument.',
        ),
        option(
            "--wait",
            action="store_true",
            help="Run the operation in this process, and wait until it is done.",
        ),
        DRY_RUN,
        *CHANGE_OPTIONS,
    )

    def run(self, options: dict[str, Any]) -> ExitCode:
        operation, operator = BY_NAME[options["operation"]], self.operator(options)
        filters = bulk.given_filters(options)
        if not (filters or options["all"] or options["dry_run"]):
            raise refuse("Give at least one filter, or --all.")
        names = ("run_after", "priority", "arguments")
        given = {name: options[name] for name in names} | {"queue": options["to"]}
        begin = bulk.preview if options["dry_run"] else bulk.start
        try:
            row = begin(operator, operation, filters, given)
        except ValueError as error:
            raise refuse(str(error)) from error
        if options["wait"] and not options["dry_run"]:
            row = bulk.finish(operator, row)
        counted = Number(row.matched, is_exact=row.is_counted)
        number = bulk.number_in_words(counted, operation.things.removesuffix("s"))
        would = f"{operation.title}: {number}."
        lines = [would] if options["dry_run"] else list(_lines(self, options, row))
        self.answer(options, as_plain(row), lines)
        with self.without_broker():
            notice = bulk.broker_notice(operator.settings, row)
        if notice:
            self.remark(notice)
        is_over = row.state == BulkOperation.State.DONE and not row.refused
        is_asked = options["wait"] and not options["dry_run"]
        return ExitCode.NO if is_asked and not is_over else ExitCode.DONE


class ListBulk(Subcommand):
    """List bulk operations, the newest first.

    List the bulk operations of the last 90 days: their users, targets and reasons.

    --json writes one object: operations[] (as `bulk show`), next (for --after; null on the last
    page).

    Examples:
      manage.py stoker bulk list
    """

    name = "list"
    options = PAGE_OPTIONS

    def run(self, options: dict[str, Any]) -> ExitCode:
        page = bulk.find(self.settings(options), options["limit"], options["after"] or "")
        lines = [line for row in page.rows for line in _lines(self, options, row)]
        if not lines:
            found = " among those that were searched" if page.is_cut else ""
            lines = [f"No bulk operations{found}."]
        if page.next:
            why = "Search further back" if page.is_cut else "The next page"
            lines.append(f"{why}: --after '{page.next}'")
        plain = {"operations": [as_plain(row) for row in page.rows], "next": page.next}
        self.answer(options, plain, lines)
        return ExitCode.DONE


class ShowBulk(Subcommand):
    """Show the progress of a bulk operation.

    Show a bulk operation: how many targets are done, and how many were not changed.

    --json writes one object: id, operation, state, matched, is_counted, done, refused, by, because,
    filters, started_at, ended_at, undoes.

    Examples:
      manage.py stoker bulk show 01a1ffdb-f411-7482-86ed-55b43acb2507
    """

    name = "show"
    options = (ID, BACKEND, JSON)

    def run(self, options: dict[str, Any]) -> ExitCode:
        row = bulk.get(self.settings(options), options["id"])
        self.answer(options, as_plain(row), _lines(self, options, row))
        return ExitCode.DONE


def _lines(command: Subcommand, options: dict[str, Any], row: BulkOperation) -> Iterator[str]:
    by = f" by {row.by}" if row.by else ""
    yield f"{row.pk}  {row.state}"
    yield f"  {row.operation}, started {since(row.started_at)}{by}"
    yield f"  {bulk.sum_up(command.settings(options), row).sentence}"


class _ChangeBulk(Subcommand):
    operation: ClassVar[Operation]
    options = (ID, *CHANGE_OPTIONS)

    def run(self, options: dict[str, Any]) -> ExitCode:
        done = self.operation.perform(self.operator(options), options["id"])
        plain = {"is_done": done.is_good, "sentence": done.sentence}
        self.answer(options, plain, [done.sentence])
        return ExitCode.DONE if done.is_good else ExitCode.NO


class PauseBulk(_ChangeBulk):
    """Pause a bulk operation.

    Hold a bulk operation until it is resumed. Changes that are already made remain.

    --json writes one object: is_done, sentence.

    Examples:
      manage.py stoker bulk pause 01a1ffdb-f411-7482-86ed-55b43acb2507
    """

    name = "pause"
    operation = bulk.PAUSE


class ResumeBulk(_ChangeBulk):
    """Resume a paused bulk operation.

    Continue a paused bulk operation.

    --json writes one object: is_done, sentence.

    Examples:
      manage.py stoker bulk resume 01a1ffdb-f411-7482-86ed-55b43acb2507
    """

    name = "resume"
    operation = bulk.RESUME


class StopBulk(_ChangeBulk):
    """Stop a bulk operation.

    Stop a bulk operation. Targets that it has changed stay changed, and no further ones are
    changed.

    --json writes one object: is_done, sentence.

    Examples:
      manage.py stoker bulk stop 01a1ffdb-f411-7482-86ed-55b43acb2507
    """

    name = "stop"
    operation = bulk.STOP


class UndoBulk(_ChangeBulk):
    """Undo a bulk operation.

    Undo one that has ended: jobs get back their time, priority, queue or arguments; requeues and
    retries are undone. Jobs that have started are not changed. The undo is a bulk operation, too.

    --json writes one object: is_done, sentence.

    Examples:
      manage.py stoker bulk undo 01a1ffdb-f411-7482-86ed-55b43acb2507
    """

    name = "undo"
    operation = bulk.UNDO


class BulkCommand(SubcommandGroup):
    """Operate on many jobs or dead letters.

    Start operations on all matching jobs or dead letters, show their progress, pause, resume, stop
    and undo them.

    Examples:
      manage.py stoker bulk start hold-job --task shop.tasks.charge
      manage.py stoker bulk list
    """

    name = "bulk"
    parts = (StartBulk, ListBulk, ShowBulk, PauseBulk, ResumeBulk, StopBulk, UndoBulk)
