"""What guards count under: one row per key, by whose lock claims and finishes take turns."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any
from uuid import UUID

from django.db import models
from django.db.models import Exists, OuterRef

from stoker.rate_window import RateRule

from .clock import database_now_us
from .need import Need
from .statements import lock_by_key, with_keys

SEEN_KEYS = 10_000
_SEEN: dict[str, set[UUID]] = {}
"""Alias -> keys that were there when this process looked last, and most probably are."""


class GuardKeyQuerySet(models.QuerySet["GuardKey"]):
    def lock(self, key_ids: Collection[UUID]) -> dict[UUID, GuardKey]:
        """Lock these keys, in the order of their ids. A transaction may do so once."""
        if not key_ids:
            return {}
        names = [field.attname for field in self.model._meta.concrete_fields]
        rows = lock_by_key(self, key_ids, *names)
        return {row.id: row if isinstance(row, GuardKey) else _from(row) for row in rows}

    def lock_or_make(self, needs: Iterable[Need]) -> dict[UUID, GuardKey]:
        """Lock the keys of these needs; those that are not there yet are made."""
        stated = {need.key_id: need for need in needs}
        seen = _SEEN.setdefault(self.db, set())
        if unseen := stated.keys() - seen:
            there = set(with_keys(self, unseen).values_list("pk", flat=True))
            self._make([stated[key_id] for key_id in unseen - there])
        keys = self.lock(stated.keys())
        while missing := stated.keys() - keys.keys():  # upkeep has forgotten them
            self._make([stated[key_id] for key_id in missing])
            keys |= self.lock(missing)
        if len(seen) > SEEN_KEYS:
            seen.clear()
        seen |= stated.keys()
        return keys

    def _make(self, needs: Iterable[Need]) -> None:
        """In the order of ids: two who make the same keys wait for each other in one direction
        only. A key that was forgotten goes on with a higher fence: it begins at the present."""
        missing = sorted(needs, key=lambda need: need.key_id)
        if missing:
            fence = database_now_us(self.db)
            self.bulk_create(
                [
                    GuardKey(id=need.key_id, kind=need.kind, name=need.name, fence=fence)
                    for need in missing
                ],
                ignore_conflicts=True,
            )

    def forget(self, key_ids: Collection[UUID]) -> int:
        """Delete those of these keys that nobody needs."""
        unused = self.filter(
            ~Exists(Need.objects.using(self.db).filter(key_id=OuterRef("pk"))),
            pk__in=key_ids,
            has_line=False,
            places_set=None,
        )
        return unused.delete()[0]


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
    def learn(keys: Mapping[UUID, GuardKey], needs: Iterable[Need]) -> list[GuardKey]:
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


def _from(row: Any) -> GuardKey:
    key = GuardKey(**row._asdict())
    key._state.adding = False
    return key
