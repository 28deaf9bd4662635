"""``manage.py stoker schedules``: looks at schedules, runs them now, pauses and resumes them."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from stoker import schedules
from stoker.models import Schedule

from .dead_words import first_line, positive
from .schedule_lines import (
    MOMENT,
    call_as_plain,
    lines_of,
    next_ticks_of,
    next_words,
    rule_words,
    schedule_as_plain,
    tick_as_plain,
    tick_line,
)
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
        parser.add_argument("--json", action="store_true", help="Write one object, as told above.")

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
            help="So many of its last ticks. Default: %(default)s.",
        )
        add_backend(parser)
        parser.add_argument("--json", action="store_true", help="Write one object, as told above.")

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
        parser.add_argument("--json", action="store_true", help="Write one object, as told above.")

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
        parser.add_argument("--because", default="", metavar="TEXT", help="Why: shown with it.")
        add_backend(parser)
        parser.add_argument("--json", action="store_true", help="Write one object, as told above.")

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
        parser.add_argument("--json", action="store_true", help="Write one object, as told above.")

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
        "--by", metavar="NAME", help="Who does it. Default: the user who runs this."
    )


def _told(command: Subcommand, rows: list[Schedule], *, as_json_object: bool) -> ExitCode:
    if as_json_object:
        command.say(as_json({"schedules": [schedule_as_plain(row) for row in rows]}))
    else:
        for row in rows:
            command.say(f"{row.name}  {next_words(row)}")
    return ExitCode.DONE
