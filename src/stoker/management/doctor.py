"""``manage.py stoker doctor``: whether the store is as it should be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandParser

from stoker.inspect.doctor.examination import MOST_ROWS, Finding, Report, examine

from .bar import bar
from .labels import positive
from .subcommand import (
    ExitCode,
    Subcommand,
    add_backend,
    as_json,
    backend_settings,
    within_deadlines,
)


class Doctor(Subcommand):
    name = "doctor"
    summary = "Name what breaks a promise; mend what is safe."
    description = """\
Read the store, page by page, and name whatever breaks an invariant: jobs that are in no line or in
two, leases and places of nobody, lines that nobody calls, dead letters that do not say what is so,
missing indexes and migrations. Clusters may go on meanwhile. A notice is no fault: it is good to
know, or upkeep will see to it.

--repair mends what is safe to mend. It looks at each thing once more, in the transaction that
changes it, and deletes nothing that is not written down elsewhere.

Exit code 0: there is no fault, or all are mended. Exit code 1: there are faults. Exit code 2: the
store could not be read.

--json writes one object:
  backend, is_healthy, seconds
  looked_at    rows
  cut_short[]  tables of which rows were left out
  findings[]   name, sentence, is_fault, remedy ("": none is safe), count, ids[] (20 at most),
               mended, error ("", or why the repair failed)"""
    examples = """\
  manage.py stoker doctor
  manage.py stoker doctor --repair
  manage.py stoker doctor --json | jq -r '.findings[].name'"""

    def add_arguments(self, parser: CommandParser) -> None:
        add_backend(parser)
        parser.add_argument(
            "--repair", action="store_true", help="Repair what can be repaired safely."
        )
        parser.add_argument(
            "--most-rows",
            type=positive,
            default=MOST_ROWS,
            metavar="N",
            help="Of one table. Default: %(default)s.",
        )
        parser.add_argument(
            "--json", action="store_true", help="Write one JSON object, as described above."
        )

    def run(self, options: dict[str, Any]) -> ExitCode:
        settings = within_deadlines(backend_settings(options["backend"]))
        with bar("looking at rows"):
            report = examine(settings, repair=options["repair"], most_rows=options["most_rows"])
        if options["json"]:
            shape = {"backend": settings.alias, "is_healthy": report.is_healthy, **asdict(report)}
            self.say(as_json(shape))
        else:
            for finding in report.findings:
                for line in self._lines(finding, is_repair=options["repair"]):
                    self.say(line)
            self.say(_verdict(report))
        return ExitCode.DONE if report.is_healthy else ExitCode.NO

    def _lines(self, finding: Finding, *, is_repair: bool) -> Iterator[str]:
        style = self.command.style
        word = style.ERROR("fault ") if finding.is_fault else style.WARNING("notice")
        yield f"{word}  {finding.name}: {finding.count:,}"
        yield f"        {finding.sentence}"
        for one in finding.ids:
            yield f"          {one}"
        if finding.count > len(finding.ids):
            yield f"          and {finding.count - len(finding.ids):,} more"
        if finding.error:
            yield f"        the repair failed: {finding.error}"
        elif is_repair and finding.remedy:
            yield f"        mended {finding.mended:,}: {finding.remedy}"
        elif finding.remedy:
            yield f"        with --repair {finding.remedy}"


def _verdict(report: Report) -> str:
    looked = f"{report.looked_at:,} rows looked at in {report.seconds:.1f} s"
    if report.cut_short:
        looked += f"; not all of {', '.join(report.cut_short)}"
    faults = sum(one.is_fault and not one.is_mended for one in report.findings)
    if not faults:
        return f"No promise is broken ({looked})."
    return f"{faults} kinds of faults ({looked})."
