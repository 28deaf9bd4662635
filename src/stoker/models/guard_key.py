"""What guards count under: one row per key, by whose lock claims and finishes take turns."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from uuid import UUID

from django.db import models
from django.db.models import Exists, OuterRef

from stoker.store.engines import engine_of
from stoker.store.statements import delete_by_key, lock_by_key, with_keys
from stoker.values.rates import RateRule

from .need import Need, StatedNeed


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
        return {key.pk: key for key in engine_of(self.db).lock_or_make(self, in_order)}

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
