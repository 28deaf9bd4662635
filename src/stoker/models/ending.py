"""How jobs ended, and what is written of that."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any, NamedTuple
from uuid import UUID

from .arrays import array_literal, list_literal
from .clock import instant_us, instants_us
from .rows import Written
from .statements import columns

SUCCESSFUL = "SUCCESSFUL"
"""As ``Job.Status`` has it, which is made later."""


class Ending(NamedTuple):
    """How a job ended, as the store keeps it."""

    job_id: UUID
    status: str
    attempts: int
    worker_id: str
    started_at: float | None
    finished_at: float
    value: bytes | None = None
    reason: str = ""


class Successes(NamedTuple):
    """How jobs ended well, by columns: there are many, and an object for each would cost more than
    all that is done with it."""

    job_ids: Sequence[str]
    """The 32 digits of each; each once."""
    lease_ids: Sequence[int]
    attempts: Sequence[int]
    worker_ids: Sequence[str]
    started_at: Sequence[float]
    """Seconds since 1970, as all moments here."""
    finished_at: Sequence[float]
    values: Sequence[bytes]
    queues: Sequence[str]
    tasks: Sequence[str]
    enqueued_at: Sequence[float]
    run_after: Sequence[float | None]

    def as_arrays(self) -> dict[str, str]:
        """For ``job_finish.sql``."""
        count = len(self.job_ids)
        return {
            "id": list_literal(self.job_ids),
            "status": list_literal(repeat(SUCCESSFUL, count)),
            "attempts": list_literal(map(str, self.attempts)),
            "worker_id": array_literal(self.worker_ids),
            "started_us": list_literal(map(str, instants_us(self.started_at))),
            "finished_us": list_literal(map(str, instants_us(self.finished_at))),
            "value": list_literal([f'"\\\\x{value.hex()}"' for value in self.values]),
            "reason": list_literal(repeat('""', count)),
        }

    def as_rows(self, written: Written) -> list[tuple[Any, ...]]:
        """The values of an UPDATE of one row each; the key comes last."""
        started = written.moments(self.started_at)
        finished = written.moments(self.finished_at)
        same = (self.attempts, self.worker_ids, started, finished, self.values)
        return list(zip(repeat(SUCCESSFUL), *same, repeat(""), self.job_ids))


def endings_as_arrays(endings: Sequence[Ending]) -> dict[str, Any]:
    """For ``job_finish.sql``."""
    names = (
        "id", "status", "attempts", "worker_id", "started_us", "finished_us", "value", "reason",
    )  # fmt: skip
    rows = [
        (
            ending.job_id,
            ending.status,
            ending.attempts,
            ending.worker_id,
            instant_us(ending.started_at),
            instant_us(ending.finished_at),
            ending.value,
            ending.reason[:255],
        )
        for ending in endings
    ]
    return dict(zip(names, columns(rows, len(names)), strict=True))


def ending_rows(endings: Sequence[Ending], written: Written) -> list[tuple[Any, ...]]:
    """The values of an UPDATE of one row each; the key comes last."""
    return [
        (
            ending.status,
            ending.attempts,
            ending.worker_id,
            written.moment(ending.started_at),
            written.moment(ending.finished_at),
            written.data(ending.value),
            ending.reason[:255],
            written.id(ending.job_id),
        )
        for ending in endings
    ]
