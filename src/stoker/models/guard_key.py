"""Keys of guards: one row per key, whose lock serialises claims and finishes."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from django.db import models
from django.db.models import Exists, OuterRef

from stoker.store.engines import engine_of
from stoker.store.statements import delete_by_key, lock_by_key, with_keys
from stoker.store.written import as_uuid, database_now_us
from stoker.values.ids import first_id_at
from stoker.values.rates import RateRule, free

from .need import Need, StatedNeed
from .ready import Place


class KeyNumbers:
    """Methods that interpret the numbers of a guard key, shared by ``GuardKey`` and
    ``LockedKey``."""

    __slots__ = ()
    places: Any
    places_set: Any
    period_us: Any
    burst: Any

    @property
    def room(self) -> int:
        """Number of jobs that may hold a place at once."""
        room: int = self.places if self.places_set is None else self.places_set
        return room

    @property
    def rule(self) -> RateRule:
        """The rate, for keys of rates."""
        return RateRule(starts=self.room, period_us=self.period_us, burst=self.burst)


@dataclass(slots=True)
class LockedKey(KeyNumbers):
    """A guard key that this transaction has locked: the fields of ``GuardKey``. A batch of jobs may
    have hundreds, and model instances would take several times as long."""

    pk: UUID
    kind: str
    name: str = ""
    fence: int = 0
    places: int = 1
    places_by: UUID | None = None
    places_set: int | None = None
    has_line: bool = False
    period_us: int = 0
    burst: int = 0
    starts: Any = ()
    due_us: int | None = None


def learn(keys: Mapping[UUID, LockedKey], needs: Iterable[StatedNeed]) -> list[LockedKey]:
    """Copy the limits of the newest jobs to their keys. Return the keys that changed."""
    changed: dict[UUID, LockedKey] = {}
    for need in map(_not_ahead, needs):
        key = keys[need.key_id]
        numbers = (need.places, need.period_us, need.burst)
        if key.places_by is None or (
            need.job_id > key.places_by and numbers != (key.places, key.period_us, key.burst)
        ):
            key.places, key.period_us, key.burst = numbers
            key.places_by = need.job_id
            changed[key.pk] = key
    return list(changed.values())


def _not_ahead(need: StatedNeed) -> StatedNeed:
    """Return the need as if its job had been enqueued now, if the clock of its host was ahead.
    Otherwise no later job would count as newer until then."""
    latest = first_id_at(time.time() + 0.001)  # ids count in milliseconds
    return need if need.job_id < latest else need._replace(job_id=latest)


class Decisions(NamedTuple):
    """The decisions of a claim about ready jobs. It has locked the jobs and their keys."""

    leased: Sequence[Place]
    """The jobs to lease."""
    blocked: Sequence[tuple[Place, UUID]] = ()
    """The jobs that become blocked, each with the key in whose line it waits."""
    deferred: Sequence[tuple[Place, int]] = ()
    """The jobs to defer, each with its due time in microseconds."""
    fences: Mapping[UUID, int] = {}
    """Need that now holds a place -> its fencing number."""
    keys: Sequence[LockedKey] = ()
    """The keys that were changed."""
    now_us: int = 0
    """Time of the decisions, in microseconds on the database's clock."""

    @property
    def job_ids(self) -> list[UUID]:
        """The ids of the jobs that leave the ready table."""
        turned_away = [place for place, _ in (*self.blocked, *self.deferred)]
        return [place.job_id for place in (*self.leased, *turned_away)]


class GuardKeyQuerySet(models.QuerySet["GuardKey"]):
    def lock(self, key_ids: Collection[UUID], *, waits: bool = True) -> dict[UUID, GuardKey]:
        """Lock the given keys in the order of their ids. A transaction may call this only once.

        Args:
            key_ids: of the keys.
            waits: whether to wait for locked keys. False: skip them.
        """
        return {key.pk: key for key in lock_by_key(self, key_ids, waits=waits)} if key_ids else {}

    def lock_free(self, key_ids: Collection[UUID]) -> set[UUID]:
        """Lock the keys that exist and are not locked. Return the keys that other transactions have
        locked or, if the database can find out, are inserting."""
        if not key_ids:
            return set()
        free = {key.id for key in lock_by_key(self, key_ids, "id", waits=False)}
        known = set(with_keys(self, key_ids).values_list("pk", flat=True))
        new = set(key_ids) - known - free
        return (known - free) | engine_of(self.db).keys_being_made(self, new)

    def lock_or_make(self, needs: Iterable[StatedNeed]) -> dict[UUID, LockedKey]:
        """Create missing keys, lock all, and give each a new fencing number. A transaction may call
        this only once.

        A key that was deleted meanwhile continues with a higher number, because numbers start at
        the present time.
        """
        # The newest job decides about the numbers.
        stated = {need.key_id: need for need in sorted(needs, key=lambda need: need.job_id)}
        if not stated:
            return {}
        in_order = [_not_ahead(stated[key_id]) for key_id in sorted(stated)]
        rows = engine_of(self.db).lock_or_make(self, in_order)
        return {row[0]: LockedKey(*row) for row in rows}

    def lock_lines(self, key_ids: Collection[UUID]) -> dict[UUID, LockedKey]:
        """Lock the given keys like ``lock``. Return those with a line, which may block jobs."""
        if not key_ids:
            return {}
        rows = engine_of(self.db).hold(self, ("id", "kind", "has_line"), key_ids, "UPDATE")
        lines = [(as_uuid(key_id), kind) for key_id, kind, has_line in rows if has_line]
        return {key_id: LockedKey(key_id, kind, has_line=True) for key_id, kind in lines}

    def forget(self, keys: Mapping[UUID, GuardKey]) -> int:
        """Delete the locked keys that no job needs and whose starts no longer count for a rate."""
        rates = [key for key in keys.values() if key.starts]
        now_us = database_now_us(self.db) if rates else 0
        counting = {key.pk for key in rates if free(key.rule, key.starts, now_us) < key.rule.whole}
        needed = Need.objects.using(self.db).filter(key_id=OuterRef("pk"))
        idle = with_keys(self, keys.keys() - counting)
        unused = idle.filter(~Exists(needed), has_line=False, places_set=None)
        key_ids = list(unused.values_list("pk", flat=True))
        delete_by_key(self, key_ids)
        return len(key_ids)


class GuardKey(KeyNumbers, models.Model):
    id = models.UUIDField(primary_key=True)
    """Hash of kind, scope and text of the key, see ``guards.keys``."""
    kind = models.CharField(max_length=8)
    name = models.CharField(max_length=255)
    fence = models.BigIntegerField(default=0)
    """The last fencing number."""
    places = models.IntegerField(default=1)
    """Number of jobs that may run at once, according to the newest job."""
    places_by = models.UUIDField(null=True)
    """Id of the newest job, which ``places`` comes from; NULL = ``set_limit`` made the key, and no
    job has used it."""
    places_set = models.IntegerField(null=True)
    """Number of places set by ``set_limit``, which overrides ``places``."""
    has_line = models.BooleanField(default=False)
    """Whether the key may block jobs. If not, the blocked table need not be read."""
    period_us = models.BigIntegerField(default=0)
    """Period of a rate: ``places`` jobs may start in it."""
    burst = models.IntegerField(default=0)
    starts = models.JSONField(default=list)
    """Recent starts of a rate, see ``values.rates``."""
    due_us = models.BigIntegerField(null=True)
    """Earliest start of the next blocked job of a rate, on the database's clock."""

    objects = GuardKeyQuerySet.as_manager()

    class Meta:
        verbose_name = "guard key"
        db_table = "stoker_key"
        indexes = (models.Index(fields=["due_us"], name="stoker_key_due"),)

    def __str__(self) -> str:
        return self.name
