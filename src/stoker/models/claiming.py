"""One claim: ready jobs become leases, but for those that a guard turns away."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple
from uuid import UUID

from django.db import connections

from .admission import Admitted, Rated, admit
from .claimed import Claim, Claimed, with_packages
from .clock import database_now_us
from .isolation import deciding
from .ready import Place, Ready
from .rows import Written, insert_rows
from .statements import delete_by_key, fetch, moves_rows_in_one_statement

LOOK_MOST = 500
"""How many ready jobs are looked at in one transaction."""


class Leasing(NamedTuple):
    """What all leases of one claim have in common."""

    lease_id: int
    holder: UUID
    lease_us: int


class Claiming:
    """Moves ready jobs of these queues to claimed, best rank first, then oldest.

    Where guards turn all of them away that a round looks at, others may be ready behind them: the
    next round looks at twice as many.

    Args:
        alias: of the database.
        queues: their names, each once.
        limit: how many jobs at most.
        rated: what is wanted of jobs with a rate.
    """

    def __init__(
        self, alias: str, queues: Sequence[str], limit: int, leasing: Leasing, rated: Rated
    ) -> None:
        self.is_over = False
        """Whether nothing is ready any more for which there is room; else one may go on."""
        self._alias = alias
        self._queues = queues
        self._limit = limit
        self._leasing = leasing
        self._rated = rated
        self._look = limit

    def go_round(self) -> Iterator[list[Claim]]:
        """What has been given is leased, even if the next step raises."""
        look, self._look = self._look, max(self._limit, min(2 * self._look, LOOK_MOST))
        connection = connections[self._alias]
        if moves_rows_in_one_statement(connection) and look == self._limit:
            wanted = {"queues": list(self._queues), "limit": look, **self._leasing._asdict()}
            found = [Claim(*row) for row in fetch(connection, "claim", wanted)]
            guarded = [row.job_id for row in found if row.guards]
            self.is_over = not guarded
            yield [row for row in found if not row.guards]
            if guarded:
                room = self._limit - len(found) + len(guarded)
                yield self._decide(partial(self._lock, guarded), room, room)
        elif Ready.objects.using(self._alias).filter(queue__in=self._queues).exists():
            yield self._decide(partial(self._lock_best, look), look, self._limit)
        else:  # without a transaction, which on SQLite would be everybody's only one
            self.is_over = True

    def _decide(self, lock: Callable[[], list[Place]], look: int, room: int) -> list[Claim]:
        """Lease those of these ready jobs that no guard holds back."""
        with deciding(self._alias):
            places = lock()
            if any(place.guards for place in places):
                decision = admit(self._alias, places, room, self._rated)
                are_all = len(places) < look and not decision.has_called
                self.is_over = are_all or not decision.turned_away
                return self._lease(decision.admitted)
            self.is_over = True
            taken = places[:room]
            ready = Ready.objects.using(self._alias)
            delete_by_key(ready, [place.job_id for place in taken])
            return self._lease([Admitted(place) for place in taken])

    def _lock(self, job_ids: Sequence[UUID]) -> list[Place]:
        waiting = Ready.objects.using(self._alias).filter(pk__in=job_ids)
        locked = waiting.order_by("rank", "job_id").select_for_update(skip_locked=True)
        return [Place(*row) for row in locked.values_list(*Place._fields)]

    def _lock_best(self, look: int) -> list[Place]:
        ready = Ready.objects.using(self._alias)
        best = [place for queue in self._queues for place in ready.lock_first(queue, look)]
        best.sort(key=lambda place: (place.rank, place.job_id))
        return best[:look]

    def _lease(self, admitted: Sequence[Admitted]) -> list[Claim]:
        """The jobs are not in ready any more."""
        lease_id, holder, lease_us = self._leasing
        places = [one.place._replace(attempts=one.place.attempts + 1) for one in admitted]
        if not places:
            return []
        until_us = database_now_us(self._alias) + lease_us
        written = Written(connections[self._alias])
        lease = (lease_id, written.id(holder), until_us)
        rows = [(*lease, written.id(place.job_id), *place[1:]) for place in places]
        names = ("lease_id", "holder", "leased_until_us", *Place._fields)
        insert_rows(Claimed.objects.using(self._alias), names, rows)
        return [
            claim._replace(fence=one.fence, permit_seconds=one.permit_seconds, refused=one.refused)
            if one.place.guards
            else claim
            for claim, one in zip(with_packages(self._alias, places), admitted, strict=True)
        ]
