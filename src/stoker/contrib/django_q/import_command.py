"""``manage.py stoker import_django_q``."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser
from django.db import connections

from stoker.management.bar import bar
from stoker.management.subcommand import ExitCode, Subcommand, refuse

from . import conf


class ImportDjangoQ(Subcommand):
    name = "import_django_q"
    summary = "Copy schedules, waiting jobs and results from the tables of Django Q."
    description = """\
Copy what Django Q or Django Q 2 has left in its tables: schedules, packages that wait
(django_q_ormq), results and failures (django_q_task). The tables are read only: nothing is
changed in them. Stop the clusters of Django Q before.

A package is unpickled only if its signature is right: that of SECRET_KEY, or of
SECRET_KEY_FALLBACKS, with the name of Q_CLUSTER. Results were never signed, so only plain values
are read of them.

It may be interrupted, and called again: what was copied is not copied a second time. What is not
copied is told, with the reason."""
    examples = """\
  manage.py stoker import_django_q --dry-run     what would be done
  manage.py stoker import_django_q               do it
  manage.py stoker import_django_q --name shop   packages were signed with this name of Q_CLUSTER"""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--dry-run", action="store_true", help="Say what would be done, and do nothing."
        )
        parser.add_argument(
            "--name",
            metavar="NAME",
            help='The "name" of Q_CLUSTER with which packages were signed. Default: that of today.',
        )
        parser.add_argument(
            "--from",
            dest="source",
            metavar="ALIAS",
            help="The database that has the tables, by its name under DATABASES. Default: that of "
            '"orm" in Q_CLUSTER, else "default".',
        )

    def run(self, options: dict[str, Any]) -> ExitCode:
        from .importing import import_tables, summary  # which needs settings that are sound

        source = options["source"] or conf.given().get("orm") or "default"
        if source not in connections:
            raise refuse(f"DATABASES has no {source!r}: name one of {', '.join(connections)}.")
        name = options["name"] or conf.Conf.PREFIX
        with bar("copying rows"):
            done = import_tables(source, name, dry_run=options["dry_run"])
        for line in summary(done, dry_run=options["dry_run"]):
            self.say(line)
        return ExitCode.DONE
