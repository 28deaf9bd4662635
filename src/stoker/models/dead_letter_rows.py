"""How the rows of dead letters are written: one statement for all of them where a database takes
that, else one prepared statement."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.conf import settings
from django.db import connections
from django.utils import timezone

from .arrays import array_literal
from .rows import Written
from .statements import moves_rows_in_one_statement, statement

if TYPE_CHECKING:
    from .dead_letter import DeadLetter

NEWEST = {
    "key": "varchar",
    "task": "varchar",
    "queue": "varchar",
    "priority": "smallint",
    "package": "bytea",
    "reason": "varchar",
    "exception_class": "varchar",
    "message": "text",
    "traceback": "text",
    "fingerprint": "varchar",
    "worker_id": "varchar",
    "enqueued_at": "timestamptz",
    "failed_at": "timestamptz",
    "requeue_due_us": "bigint",
}
"""What a further failure of the same logical job replaces, without a thought -> its type on
PostgreSQL."""
COLUMNS = {
    "id": "uuid",
    "identity": "varchar",
    "state": "varchar",
    "job_id": "uuid",
    "attempts": "smallint",
    "failure_count": "integer",
    "first_failed_at": "timestamptz",
    **NEWEST,
}
"""What is written of a failure. The rest begins with the defaults of the table."""


def upsert_rows(alias: str, entries: Sequence[DeadLetter]) -> None:
    """Add these entries, or let them replace what an older failure said.

    Args:
        alias: of the database.
        entries: each identity once, in the order of the identities.
    """
    connection = connections[alias]
    with connection.cursor() as cursor:
        if moves_rows_in_one_statement(connection):
            arrays = [f"%s::{kind}[]" for kind in COLUMNS.values()]
            rows = f"SELECT * FROM unnest({', '.join(arrays)})"  # noqa: S608 - our own names
            columns = zip(*map(_as_text, entries), strict=True)
            cursor.execute(_text(connection, rows), [array_literal(one) for one in columns])
        else:
            written = Written(connection)
            marks = ", ".join(["%s"] * len(COLUMNS))
            text = _text(connection, f"VALUES ({marks})")
            cursor.executemany(text, [_as_parameters(entry, written) for entry in entries])


def _text(connection: Any, rows: str) -> str:
    has_excluded = connection.vendor != "mysql"
    new, end = ("excluded.", "") if has_excluded else ("VALUES(", ")")
    conflict = "ON CONFLICT (identity) DO UPDATE SET" if has_excluded else "ON DUPLICATE KEY UPDATE"
    quote = connection.ops.quote_name
    text = statement(
        "dead_letter_upsert",
        columns=", ".join(map(quote, COLUMNS)),
        rows=rows,
        conflict=conflict,
        new=new,
        end=end,
        newest=",\n    ".join(f"{quote(name)} = {new}{quote(name)}{end}" for name in NEWEST),
    )
    return text[text.index("INSERT") :]  # a driver sends rows together if it knows an INSERT by it


def _as_text(entry: DeadLetter) -> list[Any]:
    values = (getattr(entry, name) for name in COLUMNS)
    return [_aware(one).isoformat() if isinstance(one, datetime) else one for one in values]


def _as_parameters(entry: DeadLetter, written: Written) -> list[Any]:
    return [_parameter(getattr(entry, name), written) for name in COLUMNS]


def _parameter(value: Any, written: Written) -> Any:
    if isinstance(value, UUID):
        return written.id(value)
    if isinstance(value, datetime):
        return written.moment(_aware(value).timestamp())
    return written.data(value) if isinstance(value, bytes) else value


def _aware(value: datetime) -> datetime:
    return value if settings.USE_TZ else timezone.make_aware(value)
