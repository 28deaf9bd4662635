"""What guards count under: one row per key, by whose lock claims and finishes take turns."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any
from uuid import UUID

from django.db import connections, models
from django.db.models import Exists, OuterRef

from stoker.store.clock import database_now_us
from stoker.store.statements import (
    Written,
    delete_by_key,
    fetch,
    lock_by_key,
    moves_rows_in_one_statement,
    with_keys,
)
from stoker.values.rates import RateRule

from .need import Need, StatedNeed

COLUMNS = (
    "id", "kind", "name", "fence", "places", "places_by", "has_line", "period_us", "burst",
    "starts",
)  # fmt: skip
"""Of a key that is made: the rest is NULL."""
RAISE_FENCE = {
    "mysql": "ON DUPLICATE KEY UPDATE fence = fence + 1",
    "sqlite": "ON CONFLICT (id) DO UPDATE SET fence = fence + 1",
}


class GuardKeyQuerySet(models.QuerySet["GuardKey"]):
    def lock(self, key_ids: Collection[UUID], *, waits: bool = True) -> dict[UUID, GuardKey]:
        """Lock these keys, in the order of their ids. A transaction may do so once.

        Args:
            key_ids: of the keys.
            waits: False: leave out those that other transactions hold.
        """
        return {key.pk: key for key in lock_by_key(self, key_ids, waits=waits)} if key_ids else {}

    def lock_free(self, key_ids: Collection[UUID]) -> set[UUID]:
        """Lock those of these keys that are there and free. Returns the keys that other
        transactions hold."""
        if not key_ids:
            return set()
        free = {key.id for key in lock_by_key(self, key_ids, "id", waits=False)}
        return set(with_keys(self, key_ids).values_list("pk", flat=True)) - free

    def lock_or_make(self, needs: Iterable[StatedNeed]) -> dict[UUID, GuardKey]:
        """Lock the keys of these needs, for a decision about jobs: those that are not there yet are
        made, and the fence of each is one that nobody has had. A transaction may do so once.

        A key that was forgotten goes on with a higher fence: it begins at the present.
        """
        # The newest job says how many.
        stated = {need.key_id: need for need in sorted(needs, key=lambda need: need.job_id)}
        if not stated:
            return {}
        in_order = [stated[key_id] for key_id in sorted(stated)]
        connection = connections[self.db]
        if moves_rows_in_one_statement(connection):
            rows = fetch(connection, "key_lock_or_make", _as_arrays(in_order))
            return {row[0]: _from(row) for row in rows}
        table = connection.ops.quote_name(self.model._meta.db_table)
        suffix = RAISE_FENCE[connection.vendor]
        with connection.cursor() as cursor:
            cursor.executemany(
                f"INSERT INTO {table} ({', '.join(COLUMNS)})"  # noqa: S608 - our own names
                f" VALUES ({', '.join(['%s'] * len(COLUMNS))}) {suffix}",
                _as_rows(in_order, Written(connection), database_now_us(self.db)),
            )
        return self.lock(stated)

    def forget(self, keys: Collection[UUID]) -> int:
        """Delete those of these keys that nobody needs. They are locked."""
        needed = Need.objects.using(self.db).filter(key_id=OuterRef("pk"))
        unused = with_keys(self, keys).filter(~Exists(needed), has_line=False, places_set=None)
        key_ids = list(unused.values_list("pk", flat=True))
        delete_by_key(self, key_ids)
        return len(key_ids)


class GuardKey(models.Model):
    id = models.UUIDField(primary_key=True)
    """Made of kind, scope and text of the key, see ``guards.keys``."""
    kind = models.CharField(max_length=8)
    name = models.CharField(max_length=255)
    fence = models.BigIntegerField(default=0)
    """The last fencing number that was given."""
    places = models.IntegerField(default=1)
    """How many may have a place at once, as the newest job seen here has it."""
    places_by = models.UUIDField(null=True)
    """That job."""
    places_set = models.IntegerField(null=True)
    """Set by hand; counts before what jobs say."""
    has_line = models.BooleanField(default=False)
    """Whether somebody may be blocked here: where nobody is, nobody has to be looked for."""
    period_us = models.BigIntegerField(default=0)
    """Of a rate: ``places`` starts in that time."""
    burst = models.IntegerField(default=0)
    starts = models.JSONField(default=list)
    """The last starts of a rate, see ``rate_window``."""
    due_us = models.BigIntegerField(null=True)
    """When the next of a rate's line may start, on the database's clock."""

    objects = GuardKeyQuerySet.as_manager()

    class Meta:
        verbose_name = "guard key"
        db_table = "stoker_key"
        indexes = (models.Index(fields=["due_us"], name="stoker_key_due"),)

    def __str__(self) -> str:
        return self.name

    @property
    def room(self) -> int:
        """How many may have a place at once."""
        return self.places if self.places_set is None else self.places_set

    @property
    def rule(self) -> RateRule:
        """The rate, if this is one."""
        return RateRule(starts=self.room, period_us=self.period_us, burst=self.burst)

    @staticmethod
    def learn(keys: Mapping[UUID, GuardKey], needs: Iterable[StatedNeed]) -> list[GuardKey]:
        """Take the numbers over from the newest job. Returns the keys that changed by it."""
        changed: dict[UUID, GuardKey] = {}
        for need in needs:
            key = keys[need.key_id]
            numbers = (need.places, need.period_us, need.burst)
            is_newer = key.places_by is None or need.job_id > key.places_by
            if is_newer and numbers != (key.places, key.period_us, key.burst):
                key.places, key.period_us, key.burst = numbers
                key.places_by = need.job_id
                changed[key.pk] = key
        return list(changed.values())


def _from(row: tuple[Any, ...]) -> GuardKey:
    key = GuardKey.from_db(None, _names(), row)
    if isinstance(key.starts, str):  # as Django has drivers give JSON
        key.starts = json.loads(key.starts)
    return key


@cache
def _names() -> list[str]:
    return [field.attname for field in GuardKey._meta.concrete_fields]


def _as_arrays(needs: Sequence[StatedNeed]) -> dict[str, list[Any]]:
    return {
        "id": [need.key_id for need in needs],
        "kind": [need.kind for need in needs],
        "name": [need.name for need in needs],
        "places": [need.places for need in needs],
        "places_by": [need.job_id for need in needs],
        "period_us": [need.period_us for need in needs],
        "burst": [need.burst for need in needs],
    }


def _as_rows(needs: Sequence[StatedNeed], written: Written, fence: int) -> list[tuple[Any, ...]]:
    return [
        (
            written.id(need.key_id),
            need.kind,
            need.name,
            fence,
            need.places,
            written.id(need.job_id),
            False,
            need.period_us,
            need.burst,
            "[]",
        )
        for need in needs
    ]
