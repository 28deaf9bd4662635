"""The part of upkeep that looks after the history of metrics: it notes how many jobs wait, folds
what has grown old into longer stretches of time, and forgets what is past its keeping."""

from __future__ import annotations

import time
from collections.abc import Callable

from stoker.conf import Settings
from stoker.models import Sample, Tally
from stoker.models.metrics import FOLDS, PEAKS, SAMPLE_SECONDS, fold_oldest, forget_before
from stoker.queue_depths import queues

MOST_FOLDS = 200
"""In one go. There are a few each minute; more after a time without upkeep."""


class History:
    """The history of one store.

    Args:
        beat: called again and again: a sign of life.
    """

    def __init__(self, settings: Settings, beat: Callable[[], None]) -> None:
        self._settings = settings
        self._beat = beat
        self._noted_start = 0
        """The minute of the last look."""
        self._tables = (
            Tally.objects.using(settings.database),
            Sample.objects.using(settings.database),
        )

    def note_backlogs(self) -> None:
        """One look at the queues for each minute, whoever does it."""
        if not self._settings.keep_metrics_seconds:
            return
        start = int(time.time()) // SAMPLE_SECONDS * SAMPLE_SECONDS
        if start == self._noted_start:
            return
        samples = Sample.objects.using(self._settings.database)
        if not samples.filter(seconds=SAMPLE_SECONDS, start=start).exists():
            samples.bulk_create(
                Sample(
                    start=start,
                    seconds=SAMPLE_SECONDS,
                    queue=queue.name,
                    **{name: getattr(queue, name) for name in PEAKS},
                )
                for queue in queues(self._settings)
            )
        self._noted_start = start

    def tidy(self) -> int:
        """Fold what has grown old, and forget what is past its keeping. Returns how often."""
        now = time.time()
        return self._fold(now) + self._forget(now - self._settings.keep_metrics_seconds)

    def _fold(self, now: float) -> int:
        folded = 0
        for rows in self._tables:
            for fold in FOLDS:
                for _ in range(MOST_FOLDS):
                    if not fold_oldest(rows, fold, now):
                        break
                    folded += 1
                    self._beat()
        return folded

    def _forget(self, before: float) -> int:
        forgotten = 0
        for rows in self._tables:
            while forget_before(rows, before):
                forgotten += 1
                self._beat()
        return forgotten
