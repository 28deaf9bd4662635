"""Insert many rows at once on PostgreSQL.

New jobs go by COPY, which streams rows: no statement contains all of them, and nothing is planned.
The rows are written here in COPY's binary format. All fields except id and package are the same for
every row, so they are encoded once; a driver would encode each value of each row.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from django.db import connections
from django.db.models import AutoField, QuerySet

from .written import MICROSECONDS, instant_us, microseconds, statement

BEGINNING = b"PGCOPY\n\xff\r\n\0" + bytes(8)
END = struct.pack(">h", -1)
NULL = struct.pack(">i", -1)
EPOCH_US = 946_684_800 * MICROSECONDS
"""The year 2000 in microseconds since 1970. PostgreSQL counts from there."""
AT_ONCE = 100
"""Rows sent together. The server stores them while the next ones are encoded."""

NewRow = tuple[int, bytes]
"""A job's id as a number, and its package."""


@dataclass(frozen=True, slots=True)
class InCommon:
    """The values that are the same for all jobs of one COPY."""

    task: str
    queue: str
    priority: int
    enqueued_at: float
    run_after: float | None


def copy_jobs(alias: str, jobs: Iterable[NewRow], common: InCommon) -> None:
    """Insert jobs with fresh ids, and their ready or deferred rows, in the open transaction.

    Args:
        jobs: an iterable that is read during the COPY. It must not use the connection.
    """
    connection = connections[alias]
    connection.validate_no_broken_transaction()
    rank, zero = _short(-common.priority), _short(0)
    waiting = _text(common.queue) + rank + 3 * zero
    if common.run_after is None:
        name, count = "ready_copy", 6
    else:
        name, count = "deferred_copy", 7
        waiting = _long(microseconds(common.run_after)) + waiting
    head = struct.pack(">hi", count, 16)
    places: list[bytes] = []
    with connection.cursor() as cursor, connection.wrap_database_errors:
        _copy(cursor, "job_copy", _job_rows(jobs, common, places))
        _copy(cursor, name, (head + job_id + waiting for job_id in places))


def _copy(cursor: Any, name: str, rows: Iterable[bytes]) -> None:
    rows = iter(rows)
    with cursor.copy(statement(name)) as copy:
        copy.write(BEGINNING)
        while part := list(islice(rows, AT_ONCE)):
            copy.write(b"".join(part))
        copy.write(END)


def _job_rows(jobs: Iterable[NewRow], common: InCommon, ids: list[bytes]) -> Iterable[bytes]:
    """Yield the encoded rows of the jobs and append their ids to ``ids``."""
    head, length = struct.pack(">hi", 10, 16), struct.Struct(">i").pack
    rest = (
        _text(common.task)
        + _text(common.queue)
        + _short(common.priority)
        + _moment(common.enqueued_at)
        + _moment(common.run_after)
        + _short(0)
        + 2 * _text("")
    )
    for number, package in jobs:
        job_id = number.to_bytes(16)
        ids.append(job_id)
        yield b"%b%b%b%b%b" % (head, job_id, length(len(package)), package, rest)


def insert_arrays(
    new: QuerySet[Any],
    rows: Sequence[Any],
    *,
    ignore_conflicts: bool = False,
    unique_fields: Sequence[str] = (),
) -> None:
    """Insert objects of one model. Each column is one parameter, an array: one parameter for each
    value of each row takes several times as long.

    Args:
        new: query for the table.
        rows: the objects. They need values for all fields, except one that the database numbers.
        ignore_conflicts: whether to skip rows that violate a unique index.
        unique_fields: the fields of that index; empty = any.
    """
    connection = connections[new.db]
    quote = connection.ops.quote_name
    model = new.model._meta
    fields = [one for one in model.concrete_fields if not isinstance(one, AutoField)]
    columns = ", ".join(quote(field.column) for field in fields)
    # "varchar" without its length: a cast to varchar(100) cuts longer texts silently
    arrays = ", ".join(f"%s::{field.db_type(connection).partition('(')[0]}[]" for field in fields)
    values = [
        [field.get_db_prep_save(getattr(row, field.attname), connection) for row in rows]
        for field in fields
    ]
    unique = ", ".join(quote(model.get_field(name).column) for name in unique_fields)
    target = f"({unique})" if unique else ""
    conflict = f"ON CONFLICT {target} DO NOTHING" if ignore_conflicts else ""
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {quote(model.db_table)} ({columns})"  # noqa: S608 - our own names
            f" SELECT * FROM unnest({arrays}) {conflict}",
            values,
        )


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">i", len(data)) + data


def _short(value: int) -> bytes:
    return struct.pack(">ih", 2, value)


def _long(value: int) -> bytes:
    return struct.pack(">iq", 8, value)


def _moment(seconds: float | None) -> bytes:
    instant = instant_us(seconds)
    return NULL if instant is None else _long(instant - EPOCH_US)
