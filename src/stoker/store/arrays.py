"""PostgreSQL's parameters: many rows as one array for each column."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from stoker.store.written import columns, instant_us, instants_us, microseconds

if TYPE_CHECKING:
    from stoker.models.job import JobColumns, Message
    from stoker.models.unique_key import Taking


def array_literal(values: Sequence[Any]) -> str:
    """Return the values as the text of a PostgreSQL array, for a parameter with a cast:
    ``%(ids)s::uuid[]``.

    Args:
        values: numbers, or str, bytes or UUID. All have the same type or are None.
    """
    sample = next((value for value in values if value is not None), None)
    write = next((writer for kind, writer in _WRITERS if isinstance(sample, kind)), str)
    if isinstance(sample, str):  # few distinct values, such as names of queues and workers
        written = {value: write(value) for value in set(values) if value is not None}
        items = [written.get(value, "NULL") for value in values]
    else:
        items = ["NULL" if value is None else write(value) for value in values]
    return list_literal(items)


def list_literal(items: Iterable[str]) -> str:
    """Return an array of items that are already in PostgreSQL's text form. Items without commas,
    braces and quotes need no quotes. The text of a JSON object has the same form."""
    return "{" + ",".join(items) + "}"


def _write_text(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _write_bytes(value: bytes) -> str:
    return f'"\\\\x{value.hex()}"'


def _write_uuid(value: UUID) -> str:
    return value.hex


_WRITERS: tuple[tuple[type, Callable[[Any], str]], ...] = (
    (str, _write_text),
    (bytes, _write_bytes),
    (UUID, _write_uuid),
)
"""Type -> function that writes one item. Numbers need none."""


def called(jobs: JobColumns) -> dict[str, str]:
    """Return the parameters of job_ensure.sql. job_add_ended.sql uses them, too."""
    return {
        "id": list_literal(jobs.job_ids),
        "task": array_literal(jobs.tasks),
        "queue": array_literal(jobs.queues),
        "priority": list_literal(map(str, jobs.priorities)),
        "package": array_literal(jobs.packages),
        "enqueued_us": _moments(jobs.enqueued_at),
    }


def ended(jobs: JobColumns) -> dict[str, str]:
    """Return the parameters of job_finish.sql. job_add_ended.sql uses them, too."""
    values = ["NULL" if value is None else f'"\\\\x{value.hex()}"' for value in jobs.values]
    return {
        "id": list_literal(jobs.job_ids),
        "status": list_literal([status or "NULL" for status in jobs.statuses]),
        "attempts": list_literal(map(str, jobs.attempts)),
        "worker_id": array_literal(jobs.worker_ids),
        "started_us": _moments(jobs.started_at),
        "finished_us": _moments(jobs.finished_at),
        "value": list_literal(values),
        "reason": array_literal(jobs.reasons),
    }


def _moments(moments: Sequence[float | None]) -> str:
    if None in moments:
        return list_literal(["NULL" if one is None else str(instant_us(one)) for one in moments])
    return list_literal(map(str, instants_us(cast("Sequence[float]", moments))))


def parameters_of(job: Message) -> dict[str, Any]:
    return {
        "id": job.job_id,
        "task": job.task,
        "queue": job.queue,
        "priority": job.priority,
        "package": job.package,
        "enqueued_us": instant_us(job.enqueued_at),
        "run_after_us": instant_us(job.run_after),
        "due_us": None if job.run_after is None else microseconds(job.run_after),
        "guards": len(job.needs),
    }


def arrays_of(jobs: Sequence[Message]) -> dict[str, Any]:
    rows = [parameters_of(job) for job in jobs]
    return {name: [row[name] for row in rows] for name in rows[0]}


def taking_arrays(takings: Sequence[Taking]) -> dict[str, list[Any]]:
    names = takings[0]._fields
    return dict(zip(names, columns(takings, len(names)), strict=True))
