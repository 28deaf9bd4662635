"""Operations on guards: change a limit while jobs run."""

from __future__ import annotations

from stoker.guards.limits import override_limit
from stoker.inspect.guards import key
from stoker.models import Need
from stoker.values.text import plural

from .operation import Done, Operation, Operator

MOST_PLACES = 1_000_000


def _limit(operator: Operator, guard_id: str, places: str = "") -> Done:
    one = key(operator.settings, guard_id)
    if one.kind != Need.Kind.LIMIT:
        return Done(f"The {one.kind} has no limit that can be changed.", is_good=False)
    number = int(places) if places.strip() else None
    if number is not None and not 0 <= number <= MOST_PLACES:
        raise ValueError(f"Write a number from 0 to {MOST_PLACES:,}.")
    before = override_limit(operator.settings, one.id, one.name, number)
    undo = {"guard": guard_id, "places": "" if before is None else str(before)}
    if number is None:
        return Done(f"The {one.name} is again the one that its tasks define.", undo=undo)
    return Done(f"The {one.name} lets {plural(number, 'job')} run at a time.", undo=undo)


LIMIT = Operation(
    "limit",
    "guard",
    "stoker.change_guardkey",
    _limit,
    label="Change the limit",
    question="How many jobs with this key may run at a time? This overrides the limit of "
    "their tasks. Running jobs continue. With 0 no job starts.",
    undo="limit",
    takes=("places",),
)
OPERATIONS = (LIMIT,)
