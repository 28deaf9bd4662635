"""The log lines of jobs: their stored form, and reading them page by page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from stoker.brokers.outage import do_without_broker
from stoker.compat import TaskResultDoesNotExist
from stoker.conf import Settings
from stoker.exceptions import BrokerUnavailable
from stoker.jobs.states import JobState, progress_of_one
from stoker.models import LogChunk
from stoker.store.engines.sessions import explained
from stoker.store.written import moment
from stoker.values.marks import key_of, mark_of
from stoker.values.text import shown_text

CHUNKS_AT_ONCE = 20
MOST_CHUNKS = 400
"""Maximum number of chunks that are read to find the newest lines."""
VIEW = "stoker.view_logchunk"
"""The permission to see the lines that jobs logged and printed."""


class StoredLine(NamedTuple):
    """A line in its stored form."""

    at_ms: int
    """Milliseconds since 1970."""
    level: str
    """Level of the log record; "" = the line was printed."""
    source: str
    """Name of the logger; ``stdout`` or ``stderr`` if it was printed."""
    text: str
    """May contain line feeds: a traceback is part of its line."""


Chunk = tuple[bytes, int, str]
"""A job's id as bytes, the attempt's number, and some of its lines as text, in a form that can be
sent between processes."""


def pack_lines(lines: Sequence[StoredLine]) -> str:
    return json.dumps(lines, ensure_ascii=False, separators=(",", ":"))


def chunk_in_ascii(chunk: Chunk) -> Chunk:
    """Return the chunk in ASCII. Its lines are read as before."""
    job_id, attempt, lines = chunk
    return job_id, attempt, json.dumps(json.loads(lines), separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line as interfaces show it, without control characters."""

    at: datetime
    attempt: int
    level: str
    """Level of the log record; "" = the line was printed."""
    source: str
    """Name of the logger; ``stdout`` or ``stderr`` if it was printed."""
    text: str
    mark: str
    """Pass it as ``after`` to get the lines after this one."""


@dataclass(frozen=True, slots=True)
class LogPage:
    """A page of a job's log lines, oldest first."""

    lines: Sequence[LogLine]
    next: str
    """Pass it as ``after`` to get the following lines. New ones may be added while the job runs."""
    has_more: bool
    """Whether more lines exist: later ones for ``log_page``, earlier ones for ``newest_lines``."""


def log_page(settings: Settings, job_id: UUID, after: str = "", limit: int = 1000) -> LogPage:
    """Return a page of a job's log lines, oldest first.

    Args:
        after: the ``next`` of another page, or the mark of a line; "" = from the first line.

    Raises:
        ValueError: ``after`` is not a valid mark.
        BrokerUnavailable, NotMigrated: the store cannot be read.
    """
    key, place = key_of(after, (int, int)) if after else (0, 0)
    found: list[LogLine] = []
    with explained(settings.database):
        for line in _lines_from(settings.database, job_id, key, place):
            found.append(line)
            if len(found) > limit:
                break
    shown = found[:limit]
    return LogPage(shown, shown[-1].mark if shown else after, len(found) > limit)


def has_ended(settings: Settings, job_id: UUID) -> bool:
    """Return whether no more attempts of a job will follow. A job that is not known (any more)
    counts as ended, unless a broker that does not answer may have it.

    Raises:
        BrokerUnavailable, NotMigrated: the store cannot be read.
    """
    with do_without_broker() as outage:
        try:
            state = progress_of_one(settings, job_id).state
        except TaskResultDoesNotExist:
            return True
        except BrokerUnavailable:
            if outage.error is None:
                raise
            return False
    return state in (JobState.SUCCESSFUL, JobState.FAILED, JobState.CANCELLED)


def newest_lines(settings: Settings, job_id: UUID, limit: int) -> LogPage:
    """Return the newest log lines of a job, oldest first. Runs one query, which reads at most
    ``limit`` chunks.

    Raises:
        BrokerUnavailable, NotMigrated: the store cannot be read.
    """
    chunks = LogChunk.objects.using(settings.database).filter(job_id=job_id).order_by("-pk")
    found: list[LogLine] = []
    with explained(settings.database):
        newest = list(chunks[: min(limit, MOST_CHUNKS) + 1])
    for chunk in newest[:MOST_CHUNKS]:
        found[:0] = _lines_of(chunk)
        if len(found) > limit:
            break
    shown = found[-limit:]
    has_more = len(found) > limit or len(newest) > MOST_CHUNKS
    return LogPage(shown, shown[-1].mark if shown else "", has_more)


def _lines_from(alias: str, job_id: UUID, key: int, place: int) -> Iterator[LogLine]:
    """Yield the lines from number ``place`` of the chunk ``key`` on."""
    chunks = LogChunk.objects.using(alias).filter(job_id=job_id).order_by("pk")
    while page := list(chunks.filter(pk__gte=key)[:CHUNKS_AT_ONCE]):
        for chunk in page:
            yield from _lines_of(chunk, place if chunk.pk == key else 0)
        if len(page) < CHUNKS_AT_ONCE:
            return
        key, place = page[-1].pk + 1, 0


def _lines_of(chunk: LogChunk, begin: int = 0) -> Iterator[LogLine]:
    for number, line in enumerate(json.loads(chunk.lines)[begin:], begin):
        at_ms, level, source, text = line
        yield LogLine(
            moment(at_ms / 1000),
            chunk.attempt,
            level,
            shown_text(source),
            shown_text(text),
            mark_of((chunk.pk, number + 1)),
        )
