"""Guards: needs, places and lines are those of jobs that are there."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

from django.db.models import Count

from stoker.models import Blocked, Claimed, DeadLetter, GuardKey, Job, Need, Ready
from stoker.models.guard_upkeep import look_after, tidy_keys
from stoker.models.isolation import deciding
from stoker.models.ready import Place
from stoker.models.statements import delete_by_key, lock_by_key, update_by_key, with_keys

from .look import AT_ONCE, Kind, Look

NEEDLESS = Kind(
    "needs_without_job",
    "These needs are of jobs that have ended or are gone; in a sequence, all that come after them "
    "wait.",
    "they are deleted, and the next ones called",
)
UNUSED = Kind(
    "places_of_nobody",
    "These needs hold a place, but their jobs do not run: others wait in vain.",
    "the places are given up, and the next ones called",
)
OVERFULL = Kind(
    "locks_held_twice",
    "More than one job holds these locks or sequences (the ids are those of their keys).",
)
KEYLESS = Kind(
    "blocked_without_key",
    "These jobs are blocked under keys that are gone: nobody would ever call them.",
    "they are ready again, and wait for their turn anew",
)
STUCK = Kind(
    "blocked_with_room",
    "Jobs are blocked under these keys though there is room, and nobody is before them.",
    "the next ones are called",
)
PLACE_FIELDS = Place._fields
A_MOMENT_SECONDS = 1.0


class Needs(Look):
    """They live as long as their jobs, and hold a place while these run."""

    def find(self) -> Iterator[tuple[Kind, Sequence[Any]]]:
        for page in self.scene.pages(Need, "job_id", "kind", "halts", "holds", "fence"):
            job_ids = {row[1] for row in page}
            alive = self._alive(job_ids)
            halting = self._halting({row[1] for row in page if row[3]} - alive)
            gone = [row[0] for row in page if row[1] not in (alive | halting)]
            yield NEEDLESS, self._still_there(gone)
            holding = {
                row[0]: row[5]
                for row in page
                if row[4] is not None and row[1] in alive and row[2] != Need.Kind.SEQUENCE
            }
            yield UNUSED, self._unused(holding)
        held = Need.objects.using(self.alias).filter(
            kind__in=(Need.Kind.LOCK, Need.Kind.SEQUENCE), holds__isnull=False
        )
        counted = held.order_by().values_list("holds").annotate(number=Count("pk"))
        yield OVERFULL, list(counted.filter(number__gt=1).values_list("holds", flat=True)[:AT_ONCE])

    def mend(self, kind: Kind, ids: Sequence[Any]) -> int:
        needs = with_keys(Need.objects.using(self.alias), ids)
        key_ids = set(needs.values_list("key_id", flat=True))
        if kind is UNUSED:
            return tidy_keys(self.alias, key_ids, forgets=False)
        with deciding(self.alias):
            rows = lock_by_key(Need.objects.using(self.alias), ids, "id", "job_id", "halts")
            alive = self._alive({row.job_id for row in rows})
            alive |= self._halting({row.job_id for row in rows if row.halts} - alive)
            gone = [row.id for row in rows if row.job_id not in alive]
            Need.objects.using(self.alias).remove(gone)
        self.scene.broker.wake_up(look_after(self.alias, key_ids))
        return len(gone)

    def _alive(self, job_ids: Collection[UUID]) -> set[UUID]:
        jobs = with_keys(Job.objects.using(self.alias).filter(status=None), job_ids)
        return set(jobs.values_list("pk", flat=True))

    def _halting(self, job_ids: Collection[UUID]) -> set[UUID]:
        """Those that failed, and stop their sequence until somebody sees to the dead letter."""
        letters = DeadLetter.objects.using(self.alias).unclosed().filter(job_id__in=job_ids)
        return set(letters.values_list("job_id", flat=True)) if job_ids else set()

    def _still_there(self, need_ids: Sequence[UUID]) -> list[UUID]:
        """An end takes the needs away, so after it they are there no more."""
        if not need_ids:
            return []
        rows = with_keys(Need.objects.using(self.alias), need_ids)
        return sorted(rows.values_list("pk", flat=True))

    def _unused(self, fences: Mapping[UUID, int]) -> list[UUID]:
        """Each attempt has a fence of its own: under the same one it is still the same place."""
        if not fences:
            return []
        needs = with_keys(Need.objects.using(self.alias), fences.keys())
        claimed = with_keys(
            Claimed.objects.using(self.alias), set(needs.values_list("job_id", flat=True))
        )
        running = set(claimed.values_list("pk", flat=True))
        still = needs.filter(holds__isnull=False).values_list("pk", "job_id", "fence")
        return [pk for pk, job_id, fence in still if job_id not in running and fence == fences[pk]]


class BlockedLines(Look):
    """Whoever is blocked waits under a key that is there, and for somebody."""

    def find(self) -> Iterator[tuple[Kind, Sequence[Any]]]:
        seen: set[UUID] = set()
        for page in self.scene.pages(Blocked, "key_id"):
            fresh = {key_id for _, key_id in page} - seen
            seen |= fresh
            if fresh:
                keyless, stuck = self._judge(fresh)
                if stuck:  # whoever withdraws jobs looks after their keys a moment later
                    time.sleep(A_MOMENT_SECONDS)
                    stuck = self._judge(set(stuck))[1]
                lost = [job_id for job_id, key_id in page if key_id in keyless]
                yield KEYLESS, lost
                yield STUCK, stuck

    def mend(self, kind: Kind, ids: Sequence[Any]) -> int:
        if kind is KEYLESS:
            return self._let_them_try(ids)
        with deciding(self.alias):
            keys = GuardKey.objects.using(self.alias).lock(ids)
            stuck = [key for key in keys.values() if self._is_stuck(key)]
            stuck_ids = [key.pk for key in stuck]
            update_by_key(GuardKey.objects.using(self.alias), stuck_ids, has_line=True)
        self.scene.broker.wake_up(look_after(self.alias, stuck_ids))
        return len(stuck_ids)

    def _judge(self, key_ids: set[UUID]) -> tuple[set[UUID], list[UUID]]:
        """The keys that are gone, and those under which nobody is called. With the keys locked, as
        whoever blocks or calls has them."""
        with deciding(self.alias):
            keys = GuardKey.objects.using(self.alias).lock(key_ids)
            missing = key_ids - keys.keys()
            lines = Blocked.objects.using(self.alias).filter(key_id__in=missing)
            keyless = set(lines.values_list("key_id", flat=True)) if missing else set()
            return keyless, sorted(key.pk for key in keys.values() if self._is_stuck(key))

    def _is_stuck(self, key: GuardKey) -> bool:
        line = Blocked.objects.using(self.alias).filter(key_id=key.pk)
        if not line.exists():
            return False
        if not key.has_line:
            return True  # nobody would look for them
        if key.due_us is not None:
            return False  # somebody will, then
        if key.kind == Need.Kind.RATE:
            return True
        needs = Need.objects.using(self.alias)
        if key.kind == Need.Kind.SEQUENCE:
            first = needs.firsts([key.pk]).get(key.pk)
            return first is not None and line.filter(pk=first).exists()
        called = needs.filter(key_id=key.pk).values("job_id")
        is_someone_called = Ready.objects.using(self.alias).filter(guards__gt=0, pk__in=called)
        has_room = len(needs.holders([key.pk])[key.pk]) < key.room
        return has_room and not is_someone_called.exists()

    def _let_them_try(self, job_ids: Sequence[UUID]) -> int:
        """The next claim makes the key, and decides."""
        with deciding(self.alias):
            blocked = Blocked.objects.using(self.alias)
            rows = lock_by_key(blocked, job_ids, *PLACE_FIELDS, "key_id")
            known = with_keys(GuardKey.objects.using(self.alias), {row.key_id for row in rows})
            there = set(known.values_list("pk", flat=True))
            lost = [row for row in rows if row.key_id not in there]
            delete_by_key(blocked, [row.job_id for row in lost])
            Ready.objects.using(self.alias).add(
                Place(*(getattr(row, name) for name in PLACE_FIELDS)) for row in lost
            )
        self.scene.broker.wake_up({row.queue for row in lost})
        return len(lost)
