"""The operation on the store: repair."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.values.text import plural

from .operation import Done, Operation, Operator

if TYPE_CHECKING:
    from stoker.inspect.doctor.examination import Report


def repair(operator: Operator, *, most_rows: int) -> Report:
    """Check the store, repair what can be repaired safely, and record what was repaired.

    Args:
        most_rows: as for ``examine``.

    Raises:
        BrokerUnavailable, NotMigrated: the store cannot be read.
    """
    done = REPAIR.act(operator, "", most_rows=most_rows)
    report: Report = done.value
    repaired = [f"{one.name}={one.mended}" for one in report.findings if one.mended]
    REPAIR.record(operator, ", ".join(repaired) or "nothing", done)
    return report


def _repair(operator: Operator, _repaired: str, *, most_rows: int) -> Done:
    # Imported here, because every page of the dashboard lists the operations, and only the command
    # needs the checks.
    from stoker.inspect.doctor.examination import examine

    report = examine(operator.settings, repair=True, most_rows=most_rows)
    count = sum(one.mended for one in report.findings)
    return Done(f"{plural(count, 'row')} of the store repaired.", value=report, count=count)


REPAIR = Operation("repair", "store", "stoker.change_job", _repair, things="rows", done="repaired")
OPERATIONS = (REPAIR,)
