"""Named locks in the database."""

from __future__ import annotations

from uuid import UUID

from django.db import IntegrityError, models, transaction
from django.db.models import F, Q

from stoker.store.written import DatabaseNow, microseconds

NOBODY = UUID(int=0)


class LockQuerySet(models.QuerySet["LockKey"]):
    def acquire(
        self,
        name: str,
        owner: UUID,
        lease_seconds: float,
        steal_after_seconds: float | None = None,
    ) -> int | None:
        """Take the lock if it is free, or if its holder has had it for ``steal_after_seconds``.

        Returns:
            The fencing number of the new holder; None if another holder has the lock.
        """
        # A released lock is free even if the database's clock was set back after the release.
        open_to_us = Q(owner=NOBODY) | Q(leased_until_us__lte=DatabaseNow())
        if steal_after_seconds is not None:
            open_to_us |= Q(taken_at_us__lte=DatabaseNow() - microseconds(steal_after_seconds))
        # Read first: a process that waits for the lock must not block writers, as an UPDATE does on
        # SQLite.
        looked_at = self.filter(name=name).annotate(is_open=open_to_us)
        is_open = looked_at.values_list("is_open", flat=True).first()
        is_taken = bool(is_open) and self._take_over(name, owner, lease_seconds, open_to_us)
        if is_open is None or (is_open and not is_taken):  # ``forget`` may have just deleted it
            is_taken = self._insert(name, owner, lease_seconds)
        if not is_taken:
            return None
        return self.filter(name=name, owner=owner).values_list("fence", flat=True).first()

    def renew(self, name: str, owner: UUID, lease_seconds: float) -> bool:
        """Renew the lease. Return False if it has ended or belongs to another owner."""
        held = self.filter(name=name, owner=owner, leased_until_us__gt=DatabaseNow())
        return bool(held.update(leased_until_us=DatabaseNow() + microseconds(lease_seconds)))

    def take(self, name: str, owner: UUID, lease_seconds: float) -> bool:
        """Take or keep the lock for ``lease_seconds``. Return whether ``owner`` holds it now."""
        return (
            self.renew(name, owner, lease_seconds)
            or self.acquire(name, owner, lease_seconds) is not None
        )

    def drop(self, name: str, owner: UUID) -> bool:
        """Release the lock. Return False if ``owner`` did not hold it (any more)."""
        # The owner is removed, so that a concurrent renewal has no effect.
        held = self.filter(name=name, owner=owner)
        return bool(held.update(owner=NOBODY, leased_until_us=DatabaseNow()))

    def forget(self, free_for_seconds: float, limit: int) -> int:
        """Delete up to ``limit`` locks that were free for that long.

        A later lock of the same name still has a higher fencing number, because numbers start at
        the present time.
        """
        unused = self.filter(leased_until_us__lt=DatabaseNow() - microseconds(free_for_seconds))
        names = list(unused.values_list("name", flat=True)[:limit])
        return unused.filter(name__in=names).delete()[0]

    def _take_over(self, name: str, owner: UUID, lease_seconds: float, open_to_us: Q) -> bool:
        now = DatabaseNow()
        changed = self.filter(open_to_us, name=name).update(
            owner=owner,
            fence=F("fence") + 1,
            taken_at_us=now,
            leased_until_us=now + microseconds(lease_seconds),
        )
        return bool(changed)

    def _insert(self, name: str, owner: UUID, lease_seconds: float) -> bool:
        now = DatabaseNow()
        until = now + microseconds(lease_seconds)
        try:
            with transaction.atomic(using=self.db):
                self.create(
                    name=name, owner=owner, fence=now, taken_at_us=now, leased_until_us=until
                )
        except IntegrityError:
            return False
        return True


class LockKey(models.Model):
    name = models.CharField(max_length=255, primary_key=True)
    owner = models.UUIDField()
    """Id of one acquisition; the nil UUID when the lock is free."""
    fence = models.BigIntegerField(default=1)
    """Fencing number, which increases with every holder. A write with a lower one comes from an
    earlier holder."""
    taken_at_us = models.BigIntegerField(default=0)
    leased_until_us = models.BigIntegerField()

    objects = LockQuerySet.as_manager()

    class Meta:
        db_table = "stoker_lock"
        verbose_name = "lock"

    def __str__(self) -> str:
        return self.name
