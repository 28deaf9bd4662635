"""Jobs that are recorded when they have ended, and have had no row before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from django.db import connections

from .statements import columns, fetch, moves_rows_in_one_statement


class Success(NamedTuple):
    """A job that has succeeded at its first attempt."""

    id: UUID
    task: str
    queue: str
    priority: int
    package: bytes
    enqueued_us: int | None
    worker_id: str
    started_us: int | None
    finished_us: int | None
    value: bytes


def add_successful(alias: str, jobs: Sequence[Success]) -> set[UUID]:
    """Write the rows of these jobs with their ends, each once. Returns those that had none: a row
    that is there is left alone. Without the one statement that does it, nothing is written."""
    connection = connections[alias]
    if not jobs or not moves_rows_in_one_statement(connection):
        return set()
    names = Success._fields
    arrays = dict(zip(names, columns(jobs, len(names)), strict=True))
    known = {row[0] for row in fetch(connection, "job_add_successful", arrays)}
    return {job.id for job in jobs} - known
