"""``manage.py stoker schedules``: looks at schedules, runs them now, pauses and resumes them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from django.core.management.base import CommandParser

from stoker.exceptions import InvalidSchedule, PackageError
from stoker.models import Schedule, Tick
from stoker.schedules import service as schedules
from stoker.values.cron import zone_named
from stoker.values.ticks import as_moment

from .enqueue import written
from .labels import as_plain, first_line, positive
from .subcommand import (
    ExitCode,
    Subcommand,
    SubcommandGroup,
    add_backend,
    as_json,
    backend_settings,
    user,
    within_deadlines,
)

MOMENT = "%a %Y-%m-%d %H:%M:%S %Z"


def state_of(row: Schedule) -> str:
    if row.is_paused:
        return "paused"
    return "over" if row.is_over else "ticking"


def rule_words(row: Schedule) -> str:
    try:
        return schedules.describe(row)
    except InvalidSchedule as error:
        return str(error)


def next_ticks_of(row: Schedule) -> list[datetime]:
    try:
        return schedules.next_ticks(row)
    except InvalidSchedule:
        return []


def next_words(row: Schedule) -> str:
    if row.is_paused:
        who = f" by {row.paused_by}" if row.paused_by else ""
        because = f": {first_line(row.paused_because, 200)}" if row.paused_because else ""
        return f"paused{who}{because}"
    moments = next_ticks_of(row)
    return moments[0].strftime(MOMENT) if moments else "over"


def schedule_as_plain(row: Schedule) -> dict[str, Any]:
    names = (
        "id", "name", "source", "task", "zone", "paused_by", "paused_because", "problem",
        "last_job_id", "fired_count", "missed_count", "repeats_left", "misfire", "overlap",
    )  # fmt: skip
    return {
        **{name: as_plain(getattr(row, name)) for name in names},
        "rule": rule_words(row),
        "state": state_of(row),
        "next_ticks": next_ticks_of(row),
        "last_moment": None if row.last_moment_us is None else as_moment(row.last_moment_us),
    }


def call_as_plain(row: Schedule, alias: str) -> dict[str, Any]:
    try:
        when = schedules.scheduled(row.name, backend=alias)
    except (PackageError, ValueError):
        return {"args": None, "kwargs": None}
    return {
        "args": [written(value) for value in when.args],
        "kwargs": {name: written(value) for name, value in when.kwargs.items()},
    }


def tick_as_plain(tick: Tick) -> dict[str, Any]:
    return {
        "moment": as_moment(tick.moment_us),
        "outcome": tick.outcome,
        "job_id": as_plain(tick.job_id),
        "fired_at": as_moment(tick.fired_us),
        "count": tick.count,
        "by": tick.by,
    }


def lines_of(row: Schedule, alias: str) -> Iterator[str]:
    call = call_as_plain(row, alias)
    yield f"schedule   {row.name} (of {'a ' if row.source == 'row' else ''}{row.source})"
    yield f"rule       {rule_words(row)}"
    yield f"task       {row.task}" + (f", queue {row.queue}" if row.queue else "")
    if call["args"] is None:
        yield "arguments  the package cannot be opened"
    else:
        named = [f"{name}={value}" for name, value in call["kwargs"].items()]
        yield f"arguments  {first_line(', '.join([*call['args'], *named]) or 'none', 300)}"
    yield f"next       {next_words(row)}"
    if row.problem:
        yield f"problem    {first_line(row.problem, 300)}"
    left = "" if row.repeats_left < 0 else f", {row.repeats_left} left"
    yield f"fired      {row.fired_count} times{left}; {row.missed_count} ticks were missed"
    yield ""


def tick_line(row: Schedule, tick: Tick) -> str:
    moment = as_moment(tick.moment_us).astimezone(_zone(row))
    late = f", {(tick.fired_us - tick.moment_us) / 1e6:.3f} s after its moment"
    job = f", job {tick.job_id}" if tick.job_id else ""
    count = f", {tick.count} ticks" if tick.count > 1 else ""
    by = f" by {tick.by}" if tick.by else ""
    is_fired = tick.outcome == Tick.Outcome.FIRED
    return f"{moment.strftime(MOMENT)}  {tick.outcome}{by}{count}{late if is_fired else ''}{job}"


def _zone(row: Schedule) -> Any:
    try:
        return zone_named(row.zone)
    except ValueError:
        return zone_named("UTC")


class ListSchedules(Subcommand):
    name = "list"
    summary = "List schedules, with their rules in words and their next ticks."
    description = """\
List all schedules by name: the rule in words, the next tick, the task; whether it is paused, by
whom and why; and why its tick could not be fired, while it is so.

--json writes one object: schedules[] {id, name, source ("code", "settings" or "row"), task, rule,
zone, state ("ticking", "paused" or "over"), next_ticks[] (five), paused_by, paused_because,
problem, last_moment, last_job_id, fired_count, missed_count, repeats_left, misfire, overlap}."""
    examples = """\
  manage.py stoker schedules list
  manage.py stoker schedules list --json | jq '.schedules[] | select(.state == "paused").name'"""

    def add_arguments(self, parser: CommandParser) -> None:
        add_backend(parser)
        parser.add_argument(
            "--json", action="store_true", help="Write one JSON object, as described above."
        )

    def run(self, options: dict[str, Any]) -> ExitCode:
        alias = within_deadlines(backend_settings(options["backend"])).alias
        rows = list(schedules.find(backend=alias).order_by("name"))
        if options["json"]:
            self.say(as_json({"schedules": [schedule_as_plain(row) for row in rows]}))
            return ExitCode.DONE
        for row in rows:
            self.say(f"{self.command.style.MIGRATE_HEADING(row.name)}  {next_words(row)}")
            self.say(f"  {rule_words(row)}; {row.task}")
            if row.problem:
                self.say(f"  {first_line(row.problem, 300)}")
        self.say(f"{len(rows)} schedules" if rows else "none")
        return ExitCode.DONE


class ShowSchedule(Subcommand):
    name = "show"
    summary = "Show one schedule, its next five ticks and its last ones."
    description = """\
Show all that is known of one schedule, its next five ticks on its own wall clock, and what became
of its last ticks.

--json writes one object: schedule (as `schedules list`, with args and kwargs, each value as text;
null if the package cannot be opened), ticks[] {moment, outcome, job_id, fired_at, count, by}."""
    examples = """\
  manage.py stoker schedules show "nightly report"
  manage.py stoker schedules show shop.tasks.report --ticks 50 --json"""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", metavar="NAME", help="The name of the schedule.")
        parser.add_argument(
            "--ticks",
            type=positive,
            default=10,
            metavar="N",
            help="Maximum number of past ticks to show. Default: %(default)s.",
        )
        add_backend(parser)
        parser.add_argument(
            "--json", action="store_true", help="Write one JSON object, as described above."
        )

    def run(self, options: dict[str, Any]) -> ExitCode:
        alias = within_deadlines(backend_settings(options["backend"])).alias
        row = schedules.get(options["name"], backend=alias)
        ticks = schedules.ticks(row.name, options["ticks"], backend=alias)
        if options["json"]:
            told = {**schedule_as_plain(row), **call_as_plain(row, alias)}
            self.say(as_json({"schedule": told, "ticks": [tick_as_plain(tick) for tick in ticks]}))
            return ExitCode.DONE
        for line in lines_of(row, alias):
            self.say(line)
        self.say(self.command.style.MIGRATE_HEADING("Next ticks"))
        for moment in next_ticks_of(row):
            self.say(f"  {moment.strftime(MOMENT)}")
        self.say(self.command.style.MIGRATE_HEADING("Last ticks"))
        for tick in ticks:
            self.say(f"  {tick_line(row, tick)}")
        return ExitCode.DONE


class RunSchedule(Subcommand):
    name = "run"
    summary = "Enqueue the job of a schedule now."
    description = """\
Enqueue the job of a schedule now, paused or not. Its next tick comes as it would have come.

--json writes one object: id (of the job)."""
    examples = """\
  manage.py stoker schedules run "nightly report\""""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", metavar="NAME", help="The name of the schedule.")
        _add_by(parser)
        add_backend(parser)
        parser.add_argument(
            "--json", action="store_true", help="Write one JSON object, as described above."
        )

    def run(self, options: dict[str, Any]) -> ExitCode:
        alias = within_deadlines(backend_settings(options["backend"])).alias
        by = user() if options["by"] is None else options["by"]
        result = schedules.run_now(options["name"], by=by, backend=alias)
        self.say(as_json({"id": result.id}) if options["json"] else f"Enqueued as job {result.id}.")
        return ExitCode.DONE


class PauseSchedule(Subcommand):
    name = "pause"
    summary = "Pause schedules: none of their ticks is fired until they are resumed."
    description = """\
Pause schedules. What falls due while they are paused is left out. Jobs that they have made go on.

--json writes one object: schedules[] (as `schedules list`)."""
    examples = """\
  manage.py stoker schedules pause "nightly report" --because "the printer is broken\""""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("names", nargs="+", metavar="NAME", help="Names of schedules.")
        _add_by(parser)
        parser.add_argument(
            "--because", default="", metavar="TEXT", help="Reason, shown with the schedule."
        )
        add_backend(parser)
        parser.add_argument(
            "--json", action="store_true", help="Write one JSON object, as described above."
        )

    def run(self, options: dict[str, Any]) -> ExitCode:
        alias = within_deadlines(backend_settings(options["backend"])).alias
        by = user() if options["by"] is None else options["by"]
        known = [schedules.get(name, backend=alias).name for name in options["names"]]
        because = options["because"]
        rows = [schedules.pause(name, by=by, because=because, backend=alias) for name in known]
        return _told(self, rows, as_json_object=options["json"])


class ResumeSchedule(Subcommand):
    name = "resume"
    summary = "Let paused schedules go on, from their next moment on."
    description = """\
Let paused schedules go on, from their next moment on.

--json writes one object: schedules[] (as `schedules list`)."""
    examples = """\
  manage.py stoker schedules resume "nightly report\""""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("names", nargs="+", metavar="NAME", help="Names of schedules.")
        add_backend(parser)
        parser.add_argument(
            "--json", action="store_true", help="Write one JSON object, as described above."
        )

    def run(self, options: dict[str, Any]) -> ExitCode:
        alias = within_deadlines(backend_settings(options["backend"])).alias
        known = [schedules.get(name, backend=alias).name for name in options["names"]]
        rows = [schedules.resume(name, backend=alias) for name in known]
        return _told(self, rows, as_json_object=options["json"])


class Schedules(SubcommandGroup):
    name = "schedules"
    summary = "List schedules, run one now, pause and resume them."
    description = """\
A schedule is a rule by which jobs are enqueued again and again, on time, by whatever cluster is
there. Those of code and settings are changed there; all can be paused and run here."""
    examples = """\
  manage.py stoker schedules list
  manage.py stoker schedules show "nightly report\""""
    parts = (ListSchedules, ShowSchedule, RunSchedule, PauseSchedule, ResumeSchedule)


def _add_by(parser: CommandParser) -> None:
    parser.add_argument(
        "--by",
        metavar="NAME",
        help="Name recorded with the action. Default: the user who runs the command.",
    )


def _told(command: Subcommand, rows: list[Schedule], *, as_json_object: bool) -> ExitCode:
    if as_json_object:
        command.say(as_json({"schedules": [schedule_as_plain(row) for row in rows]}))
    else:
        for row in rows:
            command.say(f"{row.name}  {next_words(row)}")
    return ExitCode.DONE
