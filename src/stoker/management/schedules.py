"""``manage.py stoker schedules``: list schedules, run one now, pause and resume them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from stoker.conf import Settings
from stoker.exceptions import UnknownTask
from stoker.models import Schedule, Tick
from stoker.operations import schedules as operations
from stoker.operations.details import Fact, call_fact, given, lines_of
from stoker.operations.operation import Operation
from stoker.operations.schedules import MOMENT, next_ticks_of, rule_of
from stoker.operations.wording import first_line
from stoker.schedules import service as schedules
from stoker.schedules.declare import find_declared
from stoker.tasks.arguments import ShownCall
from stoker.values.text import first_line_of, plural
from stoker.values.ticks import as_moment

from .arguments import call_as_plain, positive
from .subcommand import (
    BACKEND,
    BY,
    CHANGE_OPTIONS,
    JSON,
    ExitCode,
    OutputLine,
    Subcommand,
    SubcommandGroup,
    heading,
    option,
    refuse,
)

NAME = option("name", metavar="NAME", help="The name of the schedule.")
NAMES = option("names", nargs="+", metavar="NAME", help="Names of schedules.")
COLUMNS = (
    "id", "name", "source", "task", "zone", "paused_by", "paused_because", "problem",
    "last_job_id", "fired_count", "missed_count", "repeats_left", "misfire", "overlap",
)  # fmt: skip


def next_words(row: Schedule) -> str:
    """Return the next tick as text. If there is none, return the reason."""
    if row.is_paused:
        who = f" by {row.paused_by}" if row.paused_by else ""
        because = f": {first_line(row.paused_because, 200)}" if row.paused_because else ""
        return f"paused{who}{because}"
    moments = next_ticks_of(row, 1)
    return moments[0].strftime(MOMENT) if moments else "over"


def schedule_as_plain(row: Schedule) -> dict[str, Any]:
    """Return a schedule for JSON."""
    return {
        **{name: getattr(row, name) for name in COLUMNS},
        "rule": rule_of(row),
        "state": operations.state_of(row),
        "next_ticks": [] if row.is_paused else next_ticks_of(row),
        "paused_at": None if row.paused_us is None else as_moment(row.paused_us),
        "last_moment": None if row.last_moment_us is None else as_moment(row.last_moment_us),
    }


def tick_as_plain(tick: Tick) -> dict[str, Any]:
    """Return a tick for JSON."""
    return {
        "moment": as_moment(tick.moment_us),
        "outcome": tick.outcome,
        "job_id": tick.job_id,
        "fired_at": as_moment(tick.fired_us),
        "count": tick.count,
        "by": tick.by,
    }


def tick_line(row: Schedule, tick: Tick) -> str:
    """Return a line that describes a tick, in the time zone of its schedule."""
    late = ""
    if tick.outcome == Tick.Outcome.FIRED:
        late = f", {(tick.fired_us - tick.moment_us) / 1e6:.3f} s late"
    job = f", job {tick.job_id}" if tick.job_id else ""
    moment = row.in_zone(tick.moment_us).strftime(MOMENT)
    return f"{moment}  {operations.tick_text(tick)}{late}{job}"


class ListSchedules(Subcommand):
    """List schedules, with their rules and next ticks.

    List all schedules by name: the rule in words, the next tick, the task, the pause with user and
    reason, and why its last tick could not be fired. Declared schedules are listed as soon as a
    cluster has started with them.

    --json writes one object: schedules[] {id, name, source ("code", "settings" or "row"), task,
    rule, zone, state ("ticking", "paused" or "over"), next_ticks[] (five; none if it is paused),
    paused_at, paused_by, paused_because, problem, last_moment, last_job_id, fired_count,
    missed_count, repeats_left, misfire, overlap}.

    Examples:
      manage.py stoker schedules list
      manage.py stoker schedules list --json | jq '.schedules[] | select(.state == "paused").name'
    """

    name = "list"
    options = (BACKEND, JSON)

    def run(self, options: dict[str, Any]) -> ExitCode:
        settings = self.settings(options)
        rows = list(schedules.find(backend=settings.alias).order_by("name"))
        plain = {"schedules": [schedule_as_plain(row) for row in rows]}
        self.answer(options, plain, self._lines(settings, rows))
        return ExitCode.DONE

    def _lines(self, settings: Settings, rows: list[Schedule]) -> Iterator[OutputLine]:
        for row in rows:
            yield heading(row.name, f"  {next_words(row)}")
            yield f"  {rule_of(row)}; {row.task}"
            if row.problem:
                yield f"  {first_line(row.problem, 300)}"
        yield plural(len(rows), "schedule") if rows else _no_schedules(settings)


def _no_schedules(settings: Settings) -> str:
    """Return the line for a database without schedules, with the number of declared ones."""
    try:
        declared = len(find_declared(settings))
    except UnknownTask as error:
        return f"No schedules in the database. Those in code are unknown: {first_line_of(error)}"
    if not declared:
        return "No schedules."
    are, them = ("is", "it") if declared == 1 else ("are", "them")
    return (
        f"No schedules in the database yet. {declared:,} {are} declared in code or settings: "
        f"clusters add {them} when they start (manage.py stoker run{settings.backend_option})."
    )


class ShowSchedule(Subcommand):
    """Show one schedule, its next five ticks and its last ticks.

    Show all details of one schedule, its pause with user, time and reason, its next five ticks in
    its own time zone, and the outcomes of its last ticks.

    --json writes one object: schedule (as `schedules list`, with args and kwargs, each value as
    text; null if the package cannot be opened), ticks[] {moment, outcome, job_id, fired_at, count,
    by}.

    Examples:
      manage.py stoker schedules show "nightly report"
      manage.py stoker schedules show shop.tasks.report --ticks 50 --json
    """

    name = "show"
    options = (
        NAME,
        option(
            "--ticks",
            type=positive,
            default=10,
            metavar="N",
            help="Maximum number of past ticks to show. Default: %(default)s.",
        ),
        BACKEND,
        JSON,
    )

    def run(self, options: dict[str, Any]) -> ExitCode:
        settings = self.settings(options)
        row = schedules.get(options["name"], backend=settings.alias)
        ticks = schedules.ticks(row.name, options["ticks"], backend=settings.alias)
        call = operations.call_of_schedule(settings, row)
        plain = {
            "schedule": {**schedule_as_plain(row), **call_as_plain(call)},
            "ticks": [tick_as_plain(tick) for tick in ticks],
        }
        self.answer(options, plain, self._lines(row, call, ticks))
        return ExitCode.DONE

    def _lines(
        self, row: Schedule, call: ShownCall | None, ticks: list[Tick]
    ) -> Iterator[OutputLine]:
        yield heading(row.name)
        pause = given(Fact("Paused", operations.pause_of(row)))
        yield from lines_of([*pause, *operations.facts_of(row), call_fact(call)])
        yield heading("Next ticks")
        if row.is_paused:
            yield "  None is fired until the schedule is resumed."
        else:
            yield from (f"  {moment.strftime(MOMENT)}" for moment in next_ticks_of(row))
        yield heading("Last ticks")
        yield from [f"  {tick_line(row, tick)}" for tick in ticks] or ["  None."]


class RunSchedule(Subcommand):
    """Enqueue the job of a schedule now.

    Enqueue the job of a schedule now, even if it is paused. The next tick is not affected.

    --json writes one object: id (of the job).

    Examples:
      manage.py stoker schedules run "nightly report"
    """

    name = "run"
    options = (NAME, BY, BACKEND, JSON)

    def run(self, options: dict[str, Any]) -> ExitCode:
        done = operations.RUN.attempt(self.operator(options), options["name"])
        if not done.is_good:
            raise refuse(done.sentence)
        self.answer(options, {"id": done.job_id}, [done.sentence])
        return ExitCode.DONE


class _ChangeSchedules(Subcommand):
    operation: ClassVar[Operation]

    def run(self, options: dict[str, Any]) -> ExitCode:
        """Perform the operation on all named schedules, or on none if one does not exist."""
        operator = self.operator(options)
        known = [schedules.get(name, backend=operator.alias).name for name in options["names"]]
        rows = [self.operation.perform(operator, name).value for name in known]
        lines: Iterable[str] = [f"{row.name}  {next_words(row)}" for row in rows]
        self.answer(options, {"schedules": [schedule_as_plain(row) for row in rows]}, lines)
        return ExitCode.DONE


class PauseSchedule(_ChangeSchedules):
    """Pause schedules: none of their ticks is fired until they are resumed.

    Pause schedules. Ticks that become due while they are paused are skipped. Jobs that are
    already enqueued are not affected.

    --json writes one object: schedules[] (as `schedules list`).

    Examples:
      manage.py stoker schedules pause "nightly report" --because "the printer is broken"
    """

    name = "pause"
    operation = operations.PAUSE
    options = (NAMES, *CHANGE_OPTIONS)


class ResumeSchedule(_ChangeSchedules):
    """Resume paused schedules, from their next tick on.

    Resume paused schedules, from their next tick on.

    --json writes one object: schedules[] (as `schedules list`).

    Examples:
      manage.py stoker schedules resume "nightly report"
    """

    name = "resume"
    operation = operations.RESUME
    options = (NAMES, BACKEND, JSON)


class SchedulesCommand(SubcommandGroup):
    """List schedules, run one now, pause and resume them.

    A schedule is a rule that says when clusters enqueue a job. A schedule that is declared in code
    or settings is changed there. Every schedule can be paused and run here.

    Examples:
      manage.py stoker schedules list
      manage.py stoker schedules show "nightly report"
    """

    name = "schedules"
    parts = (ListSchedules, ShowSchedule, RunSchedule, PauseSchedule, ResumeSchedule)
