"""The cluster's sign of life, written by the pusher: it comes from the loop that does the work."""

from __future__ import annotations

import time
from typing import Any

from django.utils import timezone

from stoker.models import Cluster
from stoker.models.clock import DatabaseNow

from .board import Board
from .flights import Flights
from .loops import loop_ages
from .patience import Patience
from .plan import Plan
from .requests import Requests
from .roster import Roster


class Heartbeat:
    """One cluster's row among the clusters."""

    def __init__(
        self, plan: Plan, board: Board, flights: Flights, roster: Roster, requests: Requests
    ) -> None:
        self._plan = plan
        self._settings = plan.settings
        self._board = board
        self._flights = flights
        self._roster = roster
        self._requests = requests
        self._state = ""
        """As it was written last."""
        self.next_beat = 0.0
        """Monotonic seconds."""

    def beat_if_due(self, patience: Patience, *, is_stopping: bool) -> bool:
        """Write a sign of life when one is due, or the state has changed. Returns whether one was
        written."""
        now = time.monotonic()
        state = Cluster.State.QUIET if self._requests.is_quiet else Cluster.State.RUNNING
        if is_stopping:
            state = Cluster.State.STOPPING
        if now < self.next_beat and state == self._state:
            return False
        if patience.call(lambda: self._write(state)) is None:
            return False
        self.next_beat = now + self._settings.heartbeat_seconds
        self._state = state
        return True

    def sign_off(self) -> None:
        """A cluster that ends in good order leaves no row."""
        Cluster.objects.using(self._settings.database).filter(pk=self._plan.cluster_id).delete()

    def _write(self, state: str) -> None:
        clusters = Cluster.objects.using(self._settings.database)
        information = self._information()
        if clusters.beat(self._plan.cluster_id, state, information):
            return
        clusters.create(
            id=self._plan.cluster_id,
            name=self._settings.cluster,
            host=self._plan.host,
            pid=self._plan.pid,
            state=state,
            request=self._requests.standing,
            heartbeat_us=DatabaseNow(),
            started_at=timezone.now(),
            info=information,
        )

    def _information(self) -> dict[str, Any]:
        return {
            "alias": self._settings.alias,
            "queues": list(self._plan.served_queues),
            "board": str(self._board.path),
            "leases": len(self._flights),
            "lease_seconds": self._settings.lease_seconds,
            "loops": loop_ages(self._board),
            "workers": self._roster.information(),
        }
