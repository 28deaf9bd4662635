"""Write the log lines of jobs in the monitor, separately from the outcomes and after them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from django.db import DatabaseError, InterfaceError, connections
from django.utils import timezone

from stoker.conf import Settings
from stoker.models import LogChunk
from stoker.signals import tell
from stoker.store.engines import LARGE_BYTES
from stoker.store.transactions import is_text_refused, is_too_large, may_be_too_large, may_pass

from .lines import Chunk, chunk_in_ascii

BATCH = 500
BATCH_CHARACTERS = 1 << 20
MOST_CHARACTERS = 8 << 20
"""Maximum number of characters that wait while the store is unavailable."""
GROWTH_WRITES = 10
"""Number of writes after which batches that were too large may grow by one chunk. Each time that
they are too large again costs ``PAUSE_SECONDS``."""
WRITE_SECONDS = 0.25
"""Maximum time in seconds that a chunk waits for other chunks, to be written together with them."""
PAUSE_SECONDS = 10.0
"""Pause in seconds after a failed write, so that outcomes do not wait for log lines repeatedly."""


class LogWriter:
    """Writes the log lines in one monitor, best effort: a failed write may lose lines, and never
    delays an outcome."""

    def __init__(self, settings: Settings) -> None:
        self._alias = settings.database
        self._keep_seconds = settings.logs.keep_seconds if settings.logs else 0.0
        self._chunks: deque[Chunk] = deque()
        self._characters = 0
        self._dropped = 0
        self._most = BATCH
        """Maximum number of chunks in the next batch."""
        self._writes = 0
        self._due_at = self._try_at = 0.0

    @property
    def has_waiting(self) -> bool:
        """Whether chunks wait to be written."""
        return bool(self._chunks)

    @property
    def is_full(self) -> bool:
        """Whether a whole batch of chunks waits and may be written now."""
        return len(self._chunks) >= BATCH and time.monotonic() >= self._try_at

    @property
    def is_due(self) -> bool:
        """Whether chunks have waited long enough and may be written now."""
        return bool(self._chunks) and time.monotonic() >= self._due_at

    def add(self, chunks: Sequence[Chunk]) -> None:
        """Keep chunks until they are written. Drop them if too many characters wait."""
        if not self._chunks:
            self._due_at = max(time.monotonic() + WRITE_SECONDS, self._try_at)
        for chunk in chunks:
            if self._characters < MOST_CHARACTERS:
                self._chunks.append(chunk)
                self._characters += len(chunk[2])
            else:
                self._dropped += 1

    def write_all(self) -> None:
        """Write all waiting chunks. Stop if a write fails."""
        while self._chunks and time.monotonic() >= self._try_at:
            self.write()

    def write(self) -> None:
        """Write a batch of chunks."""
        batch = self._batch()
        keep_until = timezone.now() + timedelta(seconds=self._keep_seconds)
        rows = [
            LogChunk(job_id=UUID(bytes=job_id), attempt=attempt, lines=lines, keep_until=keep_until)
            for job_id, attempt, lines in batch
        ]
        try:
            LogChunk.objects.using(self._alias).bulk_create(rows)
        except (DatabaseError, InterfaceError) as error:
            self._note_failure(error, batch)
        else:
            self._writes += 1
            if self._writes % GROWTH_WRITES == 0:
                self._most = min(self._most + 1, BATCH)

    def _batch(self) -> list[Chunk]:
        """Remove and return the chunks to write next."""
        batch: list[Chunk] = []
        size = 0
        while self._chunks and len(batch) < self._most and size < BATCH_CHARACTERS:
            batch.append(self._chunks.popleft())
            size += len(batch[-1][2])
        self._characters -= size
        return batch

    def _note_failure(self, error: Exception, batch: list[Chunk]) -> None:
        if is_text_refused(error) and not all(lines.isascii() for _, _, lines in batch):
            self._put_back([chunk_in_ascii(chunk) for chunk in batch])
            return
        self._due_at = self._try_at = time.monotonic() + PAUSE_SECONDS
        # A lost connection may have another reason than the size. So one chunk is tried twice, and
        # dropped only if it is large.
        is_size_refused = self._most == 1 and (
            is_too_large(error) or (may_be_too_large(error) and _is_large(batch[0]))
        )
        if may_pass(error) and not is_text_refused(error) and not is_size_refused:
            self._put_back(batch)
        else:  # they will never be taken
            self._dropped += len(batch)
        if may_be_too_large(error):
            self._most = max(1, len(batch) // 2)
        tell("logs_not_written", error=error, count=self._dropped)
        connections[self._alias].close_if_unusable_or_obsolete()

    def _put_back(self, batch: Sequence[Chunk]) -> None:
        self._chunks.extendleft(reversed(batch))
        self._characters += sum(len(lines) for _, _, lines in batch)


def _is_large(chunk: Chunk) -> bool:
    """Return whether the store may refuse the chunk for its size."""
    return len(chunk[2].encode()) >= LARGE_BYTES
