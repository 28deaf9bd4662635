"""Jobs that have ended before the store knew of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from .engines import engine_of


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
    """Write the rows of these jobs with their ends, each once, where one statement can do so.

    Returns:
        Those that had none: a row that is there is left alone.
    """
    return engine_of(alias).insert_finished(jobs)
