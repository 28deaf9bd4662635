"""``manage.py stoker jobs``: list and show jobs, cancel, change or run them again."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar
from uuid import UUID

from stoker.compat import TaskResultDoesNotExist
from stoker.conf import Settings
from stoker.exceptions import StokerError
from stoker.inspect.jobs import STATES, JobFilter, JobSearch
from stoker.jobs.states import progress_of_one
from stoker.logs.lines import LogLine, LogPage, has_ended, log_page
from stoker.operations.jobs import (
    CANCEL,
    COLUMNS,
    RUN_AGAIN,
    JobDetails,
    JobRow,
    NumberAtBroker,
    broker_notice,
    details_of,
    is_of_place,
    job_id_of,
    number_at_broker,
    rows_of,
    rows_waiting_at_broker,
)
from stoker.operations.operation import Done, Operation
from stoker.operations.waiting_jobs import EDIT, HOLD, MOVE, PRIORITISE, RESCHEDULE, RUN_NOW
from stoker.operations.wording import duration, first_line, since
from stoker.store.engines.sessions import explained
from stoker.values.text import first_line_of
from stoker.why import why

from .arguments import call_as_plain, call_lines, json_of, past_moment
from .details import job_lines
from .subcommand import (
    AFTER,
    BACKEND,
    BY,
    CHANGE_OPTIONS,
    JSON,
    NO_JOBS,
    NODE,
    PAGE_OPTIONS,
    QUEUE,
    TASK,
    ExitCode,
    Option,
    Subcommand,
    SubcommandGroup,
    as_json,
    limit,
    option,
    refuse,
)

MOMENT = ("at", "text", "until", "seconds", "number", "worker_id", "by", "job_id")
ERROR = ("number", "kind", "exception_class", "message", "traceback")
FOLLOW_SECONDS = 0.5
LAST_LINES_SECONDS = 1.5
"""Seconds to wait for the last lines after the end of a job, because they are written later."""
ID = option("id", metavar="ID", help="The job's id: a UUID.")
IDS = option("ids", nargs="+", metavar="ID", help="Ids of jobs.")
LATER = "The new start: a duration from now, such as 2h, or a time, such as 2030-01-31T06:00."


def row_as_plain(row: JobRow) -> dict[str, Any]:
    """Return a line of the list for JSON."""
    columns = {name: getattr(row.job, name) for name in COLUMNS}
    more = {"state": row.state, "ran_seconds": row.ran_seconds}
    return {**columns, **more, **call_as_plain(row.call)}


def _moment_option(flag: str, side: str) -> Option:
    help_text = (
        f"Only jobs that were enqueued {side} this time; with a state of ended jobs: that ended "
        f"{side} it. An age, such as 2h, or an ISO 8601 time, such as 2030-01-31T06:00."
    )
    return option(flag, type=past_moment, metavar="MOMENT", help=help_text)


class ListJobs(Subcommand):
    """List jobs, the newest first.

    List jobs: id, state, task, arguments or label, queue, when it was enqueued or ended, how long
    its last attempt ran. Without --state, jobs of all states. A job at a broker outside the
    database is listed only after its first attempt has ended. --at-broker lists the jobs that wait
    there, and `stoker info` shows those that run.

    Filters look at 10,000 jobs for a page, and a search reads 4,000; if there may be more, the page
    says so.

    --json writes one object: jobs[] (id, state, task, queue, priority, attempts, enqueued_at,
    run_after, started_at, finished_at, worker_id, reason, ran_seconds, label, args, kwargs: each
    argument as text; null if the package is large or cannot be opened), next (for --after; null on
    the last page) and at_broker (number of jobs of this state and queue that wait at a broker
    outside the database, or run from there; null if that is unknown, with --after, and with filters
    other than --state and --queue; with --at-broker the number of listed jobs).

    Examples:
      manage.py stoker jobs list
      manage.py stoker jobs list --state failed --task shop.tasks.charge
      manage.py stoker jobs list --search order_id=7 --since 2d
      manage.py stoker jobs list --state running --json | jq -r '.jobs[].id'
    """

    name = "list"
    options = (
        option(
            "--state",
            type=str.upper,
            choices=STATES,
            default="",
            metavar="STATE",
            help="Only this state: ready, running, deferred, blocked, successful, failed or "
            "cancelled.",
        ),
        TASK,
        QUEUE,
        option(
            "--search",
            "--text",
            dest="text",
            default="",
            metavar="TEXT",
            help="Only jobs with this text in an error, the task, the label or an argument "
            "(order_id=7 for one argument), or whose id begins with it. Hidden arguments are not "
            "searched.",
        ),
        NODE,
        _moment_option("--since", "after"),
        _moment_option("--until", "before"),
        option(
            "--at-broker",
            action="store_true",
            help="Only jobs that wait at a broker outside the database. Cannot be combined with "
            "--search, --node, --since, --until or --after.",
        ),
        *PAGE_OPTIONS,
    )

    def run(self, options: dict[str, Any]) -> ExitCode:
        settings = self.settings(options)
        names = ("state", "queue", "task", "text", "node", "since", "until")
        wanted = JobFilter(**{name: options[name] for name in names})
        if options["at_broker"]:
            return self._list_at_broker(options, settings, wanted)
        with self.without_broker(), explained(settings.database):
            page = JobSearch(settings, wanted).page(options["limit"], options["after"])
            others = [job for job in page.jobs if job not in page.by_id]
            rows = rows_of(settings, [*page.by_id, *others])
            number = NumberAtBroker() if options["after"] else number_at_broker(settings, wanted)
        lines = [line for row in rows for line in _row_lines(row)]
        if notice := broker_notice(settings, wanted, number):
            lines.append(notice)
        elif not rows:
            lines.append(NO_JOBS if wanted == JobFilter() else "No such jobs.")
        if page.next is not None:
            why = "Search further back" if page.is_cut else "The next page"
            lines.append(f"{why}: --after '{page.next}'")
        jobs = [row_as_plain(row) for row in rows]
        is_known = number is not None and not options["after"] and is_of_place(wanted)
        at_broker = sum(number or ()) if is_known else None
        self.answer(options, {"jobs": jobs, "next": page.next, "at_broker": at_broker}, lines)
        return ExitCode.DONE

    def _list_at_broker(
        self, options: dict[str, Any], settings: Settings, wanted: JobFilter
    ) -> ExitCode:
        if wanted != JobFilter(wanted.state, wanted.queue, wanted.task) or options["after"]:
            raise refuse(
                "--at-broker cannot be combined with --search, --node, --since, --until or --after."
            )
        try:
            rows = rows_waiting_at_broker(settings, wanted, options["limit"])
        except ValueError as error:
            raise refuse(f"{error} Leave out --at-broker.") from error
        lines = [line for row in rows for line in _row_lines(row)] or ["No such jobs."]
        jobs = [row_as_plain(row) for row in rows]
        self.answer(options, {"jobs": jobs, "next": None, "at_broker": len(jobs)}, lines)
        return ExitCode.DONE


def _row_lines(row: JobRow) -> Iterator[str]:
    job = row.job
    when = f"enqueued {since(job.enqueued_at)}"
    if job.finished_at:
        when = f"ended {since(job.finished_at)}"
    ran = "" if row.ran_seconds is None else f", ran {duration(row.ran_seconds)}"
    yield f"{job.id}  {row.state.lower()}"
    yield f"  {job.task}"
    yield from call_lines(row.call)
    yield f"  queue {job.queue}, {when}{ran}"
    if job.reason:
        yield f"  {first_line(job.reason, 56)}"


class ShowJob(Subcommand):
    """Show one job: its call, its timeline, its errors.

    Show a job: task, arguments, result, what it waited for, and its timeline from the enqueue to
    its end, with the traceback of each failed attempt. If it will not run without an action, the
    last lines say why, as `stoker why ID` does.

    --json writes one object: job (as in `jobs list`, without what follows reason), state, label,
    args, kwargs (each value as text; null if the package cannot be opened), value (as text, or
    null), life[] {kind, at, text, until, seconds, number, worker_id, by, job_id}, waits {seconds,
    is_complete, causes[] {cause, name, seconds, times}} (null if its broker cannot look up jobs),
    errors[] {number, kind, exception_class, message, traceback}.

    Examples:
      manage.py stoker jobs show 01a1ffdb-f411-7482-86ed-55b43acb2507
      manage.py stoker jobs show 01a1ffdb-f411-7482-86ed-55b43acb2507 --json | jq .errors
    """

    name = "show"
    options = (ID, BACKEND, JSON)

    def run(self, options: dict[str, Any]) -> ExitCode:
        settings = self.settings(options)
        with self.without_broker():
            found = details_of(settings, job_id_of(options["id"]))
            answer = (
                None if found.is_over else why(settings, found.job_id, found.progress, found.row)
            )
        self.answer(options, _as_plain(found), job_lines(found, answer))
        return ExitCode.DONE


def _as_plain(found: JobDetails) -> dict[str, Any]:
    job = found.progress.job
    moments = [
        {"kind": one.kind.value, **{name: getattr(one, name) for name in MOMENT}}
        for one in found.life.moments
    ]
    attempts = [one.attempt for one in found.life.moments if one.attempt is not None]
    return {
        "job": job and {name: getattr(job, name) for name in COLUMNS},
        "state": found.progress.state.value,
        **call_as_plain(found.shown),
        "value": found.value,
        "life": moments,
        "waits": found.life.waits and found.life.waits.as_facts(),
        "errors": [{name: getattr(one, name) for name in ERROR} for one in attempts],
    }


class _ChangeJobs(Subcommand):
    operation: ClassVar[Operation]

    def run(self, options: dict[str, Any]) -> ExitCode:
        return self._perform(options, [(self.operation, {})])

    def _perform(
        self, options: dict[str, Any], wanted: Sequence[tuple[Operation, dict[str, Any]]]
    ) -> ExitCode:
        """Perform the operations on each job. Stop at the first operation that is refused."""
        operator = self.operator(options)
        answers = []
        for job_id in options["ids"]:
            for operation, taken in wanted:
                try:
                    done = operation.attempt(operator, job_id, **taken)
                except (TaskResultDoesNotExist, StokerError) as error:
                    done = Done(first_line_of(error), is_good=False)
                told = {"id": job_id, "is_done": done.is_good, "sentence": done.sentence}
                answers.append(told | ({"job_id": done.job_id} if done.job_id else {}))
                if not done.is_good:
                    break
        self.answer(options, {"jobs": answers}, _answer_lines(answers))
        return ExitCode.DONE if all(one["is_done"] for one in answers) else ExitCode.NO


def _answer_lines(answers: Sequence[dict[str, Any]]) -> Iterator[str]:
    for one in answers:
        yield f"{one['id']}: {one['sentence']}"
        if "job_id" in one:
            yield f"  {one['job_id']}"


class CancelJobs(_ChangeJobs):
    """Cancel jobs.

    Cancel waiting jobs at once, and ask running jobs to end, which takes a moment. Jobs that
    have ended are not changed.

    --json writes one object: jobs[] {id, is_done, sentence}.

    Examples:
      manage.py stoker jobs cancel 01a1ffdb-f411-7482-86ed-55b43acb2507 --because "ordered twice"
    """

    name = "cancel"
    operation = CANCEL
    options = (IDS, *CHANGE_OPTIONS)


class RunJobsAgain(_ChangeJobs):
    """Run ended jobs again.

    Enqueue ended jobs again, with the same arguments. Each becomes a new job, whose
    id is written. A failed job that has a dead letter is requeued by `dead requeue` instead.

    --json writes one object: jobs[] {id, is_done, sentence, job_id (the new job's)}.

    Examples:
      manage.py stoker jobs run 01a1ffdb-f411-7482-86ed-55b43acb2507
    """

    name = "run"
    operation = RUN_AGAIN
    options = (IDS, BY, BACKEND, JSON)


class ChangeJobs(_ChangeJobs):
    """Change waiting jobs.

    Change jobs that wait: run them now, hold them, give them another start time, queue or priority,
    or other arguments. A job that has started is not changed. `stoker bulk` does this for all jobs
    that match a filter. With a broker outside the database, every change is refused: cancel the
    job, and enqueue it again.

    --json writes one object: jobs[] {id, is_done, sentence}, once for each change of each job, up
    to the first change that is refused.

    Examples:
      manage.py stoker jobs change 01a1ffdb-f411-7482-86ed-55b43acb2507 --now
      manage.py stoker jobs change 01a1ffdb-f411-7482-86ed-55b43acb2507 --queue slow --priority -10
      manage.py stoker jobs change 01a1ffdb-f411-7482-86ed-55b43acb2507 --kwargs '{"user_id": 7}'
    """

    name = "change"
    options = (
        IDS,
        option("--now", action="store_true", help="Start as soon as a worker is free."),
        option("--hold", action="store_true", help="Do not start until --now or --run-after."),
        option("--run-after", metavar="MOMENT", help=LATER),
        option("--queue", metavar="QUEUE", help="Move to this queue."),
        option("--priority", metavar="NUMBER", help="The new priority, from -100 to 100."),
        option(
            "--args",
            dest="all_arguments",  # Django reserves `args`
            type=json_of(list),
            metavar="JSON",
            help="The new positional arguments.",
        ),
        option("--kwargs", type=json_of(dict), metavar="JSON", help="The new arguments by name."),
        *CHANGE_OPTIONS,
    )

    def run(self, options: dict[str, Any]) -> ExitCode:
        wanted: list[tuple[Operation, dict[str, Any]]] = [
            (operation, {name: options[name]})
            for operation, name in ((MOVE, "queue"), (PRIORITISE, "priority"))
            if options[name] is not None
        ]
        args, kwargs = options["all_arguments"], options["kwargs"]
        if args is not None or kwargs is not None:
            wanted.append((EDIT, {"args": args, "kwargs": kwargs}))
        # The start comes last, so that no worker takes the job before the other changes.
        starts: list[tuple[Operation, dict[str, Any]]] = [
            *([(RUN_NOW, {})] if options["now"] else []),
            *([(HOLD, {})] if options["hold"] else []),
            *([(RESCHEDULE, {"run_after": at})] if (at := options["run_after"]) else []),
        ]
        if len(starts) > 1:
            raise refuse("Write only one of --now, --hold and --run-after.")
        if not (wanted or starts):
            raise refuse("Name a change, such as --now or --queue slow.")
        return self._perform(options, [*wanted, *starts])


class ShowLog(Subcommand):
    """Show what a job logged and printed.

    Lines are shown attempt by attempt, and kept only if the setting LOGS is set. A line says when
    it was written, its level, its logger (stdout or stderr if it was printed) and its text.

    --follow continues to show new lines, with a delay of up to two seconds, until the job has
    ended.

    --json writes one object: lines[] {at, attempt, level ("" = printed), source, text, mark} and
    next (for --after). With --follow, it writes one object for each line.

    Examples:
      manage.py stoker jobs logs 01a1ffdb-f411-7482-86ed-55b43acb2507
      manage.py stoker jobs logs 01a1ffdb-f411-7482-86ed-55b43acb2507 --follow
      manage.py stoker jobs logs 01a1ffdb-f411-7482-86ed-55b43acb2507 --json | jq -r '.lines[].text'
    """

    name = "logs"
    options = (
        ID,
        option(
            "--follow", action="store_true", help="Continue to show new lines until the job ends."
        ),
        limit(1000, "Maximum number of lines to show. With --follow, all are shown."),
        AFTER,
        BACKEND,
        JSON,
    )

    def run(self, options: dict[str, Any]) -> ExitCode:
        settings = self.settings(options)
        job_id = job_id_of(options["id"])
        page = log_page(settings, job_id, options["after"] or "", options["limit"])
        if not page.lines:
            with self.without_broker():
                progress_of_one(settings, job_id)  # to refuse an unknown job
        if options["follow"]:
            self._follow(settings, job_id, page, as_objects=options["json"])
            return ExitCode.DONE
        lines = [_log_line(line) for line in page.lines]
        if not page.lines:
            lines.append(_no_lines(settings))
        if page.has_more:
            lines.append(f"The next page: --after '{page.next}'")
        self.answer(options, {"lines": page.lines, "next": page.next}, lines)
        return ExitCode.DONE

    def _follow(self, settings: Settings, job_id: UUID, page: LogPage, *, as_objects: bool) -> None:
        ended_at: float | None = None
        while True:
            for line in page.lines:
                self.say(as_json(line) if as_objects else _log_line(line))
            self.command.stdout.flush()
            now = time.monotonic()
            if not page.has_more:
                if ended_at is not None and now - ended_at >= LAST_LINES_SECONDS:
                    return
                if ended_at is None and has_ended(settings, job_id):
                    ended_at = now
                time.sleep(FOLLOW_SECONDS)
            page = log_page(settings, job_id, page.next)


def _log_line(line: LogLine) -> str:
    attempt = f"[{line.attempt}] " if line.attempt > 1 else ""
    level = f"{line.level} " if line.level else ""
    return f"{attempt}{line.at:%H:%M:%S.%f}"[:-3] + f" {level}{line.source}: {line.text}"


def _no_lines(settings: Settings) -> str:
    if settings.logs is None:
        return 'Log lines of jobs are not stored: set LOGS, for example {"level": "INFO"}.'
    return "No log lines of this job are stored."


class JobsCommand(SubcommandGroup):
    """Show jobs and logs; cancel, change or rerun them.

    List and show jobs of all states and their logs, cancel them, or run them again. Change jobs
    that wait.

    Examples:
      manage.py stoker jobs list --state failed
      manage.py stoker jobs show ID
      manage.py stoker jobs logs ID --follow
      manage.py stoker jobs cancel ID
    """

    name = "jobs"
    parts = (ListJobs, ShowJob, ShowLog, CancelJobs, RunJobsAgain, ChangeJobs)
