"""Which schedules this cluster looks after first, so that clusters seldom reach for the same one.

Nothing depends on it but how much work is done for nothing: any cluster may fire any schedule.
"""

from __future__ import annotations

from uuid import UUID
from zlib import crc32

from stoker.conf import Settings
from stoker.models import Cluster


class Shares:
    """The share of one cluster among those that are alive."""

    def __init__(self, settings: Settings, cluster_id: UUID) -> None:
        self._settings = settings
        self._cluster_id = cluster_id
        self._number = 0
        self._count = 1

    def divide(self) -> None:
        """Look who is alive."""
        clusters = Cluster.objects.using(self._settings.database)
        alive = clusters.alive_within(self._settings.lease_seconds).filter(
            name=self._settings.cluster, info__alias=self._settings.alias
        )
        keys = sorted({self._cluster_id, *alive.values_list("pk", flat=True)})
        self._number, self._count = keys.index(self._cluster_id), len(keys)

    def has(self, schedule_id: UUID) -> bool:
        return crc32(schedule_id.bytes) % self._count == self._number
