"""``manage.py stoker why``: why a job is not running."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from stoker.values.ids import parse_job_id
from stoker.why import Answer, Kind, why

from .subcommand import (
    ExitCode,
    Subcommand,
    add_backend,
    as_json,
    backend_settings,
    refuse,
    within_deadlines,
)


class Why(Subcommand):
    name = "why"
    summary = "Tell why a job is not running."
    description = """\
Tell why a job is not running, and what to do about it: one answer, read off the store. Or where it
runs, or how it ended.

Exit code 0: it runs, has ended (well, or cancelled), or will run without anybody's doing.
Exit code 1: it will not run until somebody does something: the last line says what.
Exit code 2: nobody knows a job of this id, or the store is out of reach.

--json writes one object: job_id, kind (a word of those in the guide), sentence, advice ("": nothing
to do), needs_somebody (true, false), task, queue, facts {those of the kind}."""
    examples = """\
  manage.py stoker why 01a1ffdb-f411-7482-86ed-55b43acb2507
  manage.py stoker why 01a1ffdb-f411-7482-86ed-55b43acb2507 --json | jq .kind"""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("job", metavar="ID", help="The job's id: a UUID.")
        add_backend(parser)
        parser.add_argument(
            "--json", action="store_true", help="Write one JSON object, as described above."
        )

    def run(self, options: dict[str, Any]) -> ExitCode:
        job_id = parse_job_id(options["job"])
        if job_id is None:
            raise refuse(f"{options['job']!r} is no id of a job: that is a UUID.")
        answer = why(within_deadlines(backend_settings(options["backend"])), job_id)
        if options["json"]:
            self.say(as_json(shape_of(answer)))
        else:
            self._tell(answer)
        if answer.kind == Kind.UNKNOWN:
            return ExitCode.REFUSED
        return ExitCode.NO if answer.kind.needs_somebody else ExitCode.DONE

    def _tell(self, answer: Answer) -> None:
        style = self.command.style
        what = f"{answer.task or 'job'} {answer.job_id}"
        self.say(style.MIGRATE_HEADING(f"{what}: {answer.kind.value.replace('_', ' ')}"))
        self.say(f"  {answer.sentence}")
        if answer.advice:
            self.say(f"  {answer.advice}")


def shape_of(answer: Answer) -> dict[str, Any]:
    """As JSON has it."""
    return {
        "job_id": str(answer.job_id),
        "kind": answer.kind.value,
        "sentence": answer.sentence,
        "advice": answer.advice,
        "needs_somebody": answer.kind.needs_somebody,
        "task": answer.task,
        "queue": answer.queue,
        "facts": answer.facts,
    }
