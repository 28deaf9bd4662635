"""One claim: ready jobs become leases, but for those that a guard turns away."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connections, transaction

from stoker.ids import id_of

from .admission import Admitted, Rated, admit
from .claimed import Claim, Claimed, with_packages
from .clock import NOW_SQL, database_now_us
from .isolation import deciding
from .job import as_seconds
from .paused_queue import PausedQueue
from .ready import Place, Ready, look_at_line
from .rows import Written, insert_rows
from .statements import (
    delete_by_key,
    fetch,
    moves_a_list_in_json,
    moves_rows_in_one_statement,
)
from .watermarks import Watermarks

LOOK_MOST = 500
"""How many ready jobs are looked at in one transaction."""
JOB_ID, GUARDS, RANK_AND_JOB_ID = itemgetter(0), itemgetter(5), itemgetter(2, 0)
"""Of a ``Place``."""
LEASE_ID = 1
"""Of a ``Claim``."""


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
        marks: from where on to look, in the first round.
        waits: whether to wait for guard keys that other transactions hold, see ``admit``.
    """

    def __init__(
        self,
        alias: str,
        queues: Sequence[str],
        limit: int,
        leasing: Leasing,
        rated: Rated,
        marks: Watermarks,
        *,
        waits: bool = True,
    ) -> None:
        self.is_over = False
        """Whether nothing is ready any more for which there is room; else one may go on."""
        self.has_met_locks = False
        """Whether jobs were deferred because other transactions hold keys that they need."""
        self._waits = waits
        self._alias = alias
        self._queues = queues
        self._limit = limit
        self._leasing = leasing
        self._rated = rated
        self._marks = marks
        self._look = limit

    def go_round(self) -> Iterator[list[Claim]]:
        """What has been given is leased, even if the next step raises."""
        look, self._look = self._look, max(self._limit, min(2 * self._look, LOOK_MOST))
        connection = connections[self._alias]
        if moves_rows_in_one_statement(connection) and look == self._limit:
            spans = self._marks.spans(self._queues)
            wanted = {**spans, "limit": look, **self._leasing._asdict()}
            found: list[Claim] = fetch(connection, "claim", wanted)
            guarded = [row for row in found if row[LEASE_ID] is None]
            self._marks.note(found, guarded)
            self.is_over = not guarded
            yield [row for row in found if row[LEASE_ID] is not None] if guarded else found
            if guarded:
                room = self._limit - len(found) + len(guarded)
                yield self._decide(partial(self._lock, [row[0] for row in guarded]), room, room)
        elif moves_a_list_in_json(connection):
            yield self._claim_listed(look)
        elif Ready.objects.using(self._alias).filter(queue__in=self._queues).exists():
            yield self._decide(partial(self._best, look), look, self._limit)
        else:  # without a transaction, which on an old SQLite would be everybody's only one
            self.is_over = True

    def _decide(self, lock: Callable[[], list[Place]], look: int, room: int) -> list[Claim]:
        """Lease those of these ready jobs that no guard holds back."""
        with deciding(self._alias):
            places = lock()
            if any(place.guards for place in places):
                decision = admit(self._alias, places, room, self._rated, waits=self._waits)
                self.has_met_locks = self.has_met_locks or decision.has_met_locks
                if decision.has_called:
                    self._marks.forget()
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

    def _best(self, look: int) -> list[Place]:
        ready = Ready.objects.using(self._alias)
        paused = self._paused_here()
        served = [queue for queue in self._queues if queue not in paused]
        best = [place for queue in served for place in ready.lock_first(queue, look)]
        if len(served) > 1:
            best.sort(key=lambda place: (place.rank, place.job_id))
        return best[:look]

    def _paused_here(self) -> Collection[str]:
        """What ``claim.sql`` sees for itself; elsewhere the caller has seen to it."""
        sees_pauses = moves_rows_in_one_statement(connections[self._alias])
        return PausedQueue.objects.using(self._alias).names() if sees_pauses else ()

    def _claim_listed(self, look: int) -> list[Claim]:
        """What can be done without keeping all other writers waiting is done before and after the
        transaction. Whoever was quicker in between has the job."""
        connection, line = connections[self._alias], self._first_listed(look)
        if any(map(GUARDS, line)):
            return self._decide(partial(self._best, look), look, self._limit)
        self.is_over = True
        if not line:
            return []
        listed = {"job_ids": json.dumps([*map(JOB_ID, line[: self._limit])])}
        leasing = {**self._leasing._asdict(), "holder": self._leasing.holder.hex}
        with transaction.atomic(using=self._alias, savepoint=False):
            now = NOW_SQL[connection.vendor]
            fetch(connection, "listed_lease", {**listed, **leasing}, now=now)
            fetch(connection, "listed_leave", listed)
        found = fetch(connection, "listed_claims", {**listed, "lease_id": leasing["lease_id"]})
        return [
            (id_of(int(key, 16)), *rest, due and as_seconds(connection, due))
            for key, *rest, due in found
        ]

    def _first_listed(self, look: int) -> list[tuple[Any, ...]]:
        ready = Ready.objects.using(self._alias)
        line = [row for queue in self._queues for row in look_at_line(ready, look, queue=queue)]
        if len(self._queues) > 1:
            line.sort(key=RANK_AND_JOB_ID)
        return line[:look]

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
        claims = with_packages(self._alias, lease_id, places)
        return [
            (*claim[:7], one.fence, one.permit_seconds, one.refused, claim[-1])
            for claim, one in zip(claims, admitted, strict=True)
        ]
