"""``manage.py stoker doctor``: check and repair the rows of the store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from stoker.inspect.doctor.examination import MOST_ROWS, Finding, Report, examine
from stoker.operations.store import repair
from stoker.values.text import plural

from .arguments import positive
from .bar import bar
from .subcommand import (
    BACKEND,
    BECAUSE,
    BY,
    JSON,
    ExitCode,
    OutputLine,
    StyledLine,
    Subcommand,
    option,
)


class DoctorCommand(Subcommand):
    """Find and repair inconsistent rows of the store.

    Read the store, page by page, and report rows that break an invariant: jobs that are in no state
    or in two, leases without a cluster, keys without a holder, dead letters with a wrong state,
    missing indexes and migrations. Clusters may run meanwhile. A notice is not a fault: upkeep
    will repair it, or it is only for your information.

    --repair repairs what is safe to repair. It checks each row again in the transaction that
    changes it, and deletes nothing that is not recorded elsewhere. The audit lists what was
    repaired, in how many rows, by whom and why.

    Exit code 0: there is no fault, or all are repaired. Exit code 1: there are faults. Exit code 2:
    the store could not be read.

    --json writes one object:
      backend, is_healthy, seconds
      looked_at    rows
      cut_short[]  tables that were not read completely
      not_checked[] faults that were not searched for, because a broker outside the database, of
                   this or another backend, may have these jobs
      findings[]   name, sentence, is_fault, remedy ("": none is safe), count, ids[] (20 at most),
                   mended, error ("", or why the repair failed)

    Examples:
      manage.py stoker doctor
      manage.py stoker doctor --repair --because "restored from a dump"
      manage.py stoker doctor --json | jq -r '.findings[].name'
    """

    name = "doctor"
    options = (
        BACKEND,
        option("--repair", action="store_true", help="Repair what can be repaired safely."),
        option(
            "--most-rows",
            type=positive,
            default=MOST_ROWS,
            metavar="N",
            help="Maximum number of rows to read of each table. Default: %(default)s.",
        ),
        BY,
        BECAUSE,
        JSON,
    )

    def run(self, options: dict[str, Any]) -> ExitCode:
        operator, most_rows = self.operator(options), options["most_rows"]
        with bar("looking at rows"):
            if options["repair"]:
                report = repair(operator, most_rows=most_rows)
            else:
                report = examine(operator.settings, most_rows=most_rows)
        plain = {"backend": operator.alias, "is_healthy": report.is_healthy, **asdict(report)}
        lines = [
            line
            for finding in report.findings
            for line in self._lines(finding, is_repair=options["repair"])
        ]
        self.answer(options, plain, [*lines, _verdict(report)])
        return ExitCode.DONE if report.is_healthy else ExitCode.NO

    def _lines(self, finding: Finding, *, is_repair: bool) -> Iterator[OutputLine]:
        word, style = ("fault ", "ERROR") if finding.is_fault else ("notice", "WARNING")
        yield StyledLine(style, word, f"  {finding.name}: {finding.count:,}")
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
    looked = f"{plural(report.looked_at, 'row')} looked at in {report.seconds:.1f} s"
    if report.cut_short:
        looked += f"; not all of {', '.join(report.cut_short)}"
    if report.not_checked:
        kinds = ", ".join(report.not_checked)
        looked += f"; not checked, because a broker outside the database has jobs: {kinds}"
    faults = sum(one.is_fault and not one.is_mended for one in report.findings)
    if not faults:
        return f"No guarantee is broken ({looked})."
    return f"{plural(faults, 'kind of fault', 'kinds of faults')} ({looked})."
