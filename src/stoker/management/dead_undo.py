"""``manage.py stoker dead undo``."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from stoker import dead_letters
from stoker.dead_letters import Bulk, Fate

from .dead_answers import say_bulk
from .subcommand import ExitCode, Subcommand, add_backend, backend_settings, user, within_deadlines


class Undo(Subcommand):
    name = "undo"
    summary = "Take requeues back whose jobs have not begun."
    description = """\
Take the requeue of dead letters back, by their ids, as long as the new job has not begun: it is
cancelled, and the dead letter is open as it was before. A job that has begun goes on: you are told
which it is.

--json writes one object, as `dead requeue` does; fate is under_way (it has begun), not_requeued or
closed."""
    examples = """\
  manage.py stoker dead undo 01a1fead-623a-79c2-8aa5-667b5b8d6a38 --because "the bank is not back"
  manage.py stoker dead list --state requeued"""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("ids", nargs="+", metavar="ID", help="Ids of dead letters.")
        parser.add_argument(
            "--by", metavar="NAME", help="Who does it. Default: the user who runs this."
        )
        parser.add_argument("--because", default="", metavar="TEXT", help="Why: kept with the job.")
        add_backend(parser)
        parser.add_argument("--json", action="store_true", help="Write one object, as told above.")

    def run(self, options: dict[str, Any]) -> ExitCode:
        alias = within_deadlines(backend_settings(options["backend"])).alias
        letters = [dead_letters.get(one, backend=alias).letter for one in options["ids"]]
        common = {"by": options["by"] or user(), "because": options["because"], "backend": alias}
        answers = [dead_letters.undo_requeue(one.pk, **common) for one in letters]
        others = [one for one in answers if one.fate is not Fate.TAKEN_BACK]
        bulk = Bulk(len(answers), len(answers) - len(others), others)
        return say_bulk(self, bulk, "taken back", {**options, "dry_run": False})
