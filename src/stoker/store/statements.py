"""Statements on rows given by primary key. Each function calls the engine of the rows' database."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

from django.db import models, transaction

from .engines import engine_of


def with_keys(rows: models.QuerySet[Any], keys: Collection[UUID]) -> models.QuerySet[Any]:
    """Restrict the query to the given primary keys."""
    return engine_of(rows.db).with_keys(rows, keys)


def lock_by_key(
    rows: models.QuerySet[Any], keys: Collection[UUID], *names: str, waits: bool = True
) -> list[Any]:
    """Lock rows in the order of their primary keys. See ``Engine.lock_by_key``."""
    return engine_of(rows.db).lock_by_key(rows, keys, *names, waits=waits)


def delete_by_key(rows: models.QuerySet[Any], keys: Collection[UUID]) -> None:
    """Delete rows by primary key. The caller has locked them."""
    engine_of(rows.db).delete_by_key(rows, keys)


def update_by_key(rows: models.QuerySet[Any], keys: Collection[UUID], **values: Any) -> None:
    """Set values in rows given by primary key. The caller has locked the rows."""
    engine_of(rows.db).update_by_key(rows, keys, **values)


def update_each(
    rows: models.QuerySet[Any], name: str, numbers: Mapping[UUID, int], **copied: str
) -> None:
    """Set a different number in each row. See ``Engine.update_each``."""
    engine_of(rows.db).update_each(rows, name, numbers, **copied)


def insert_rows(
    rows: models.QuerySet[Any], names: Sequence[str], values: Sequence[Sequence[Any]]
) -> None:
    """Insert rows into the table of this query set. See ``Engine.insert_rows``."""
    engine_of(rows.db).insert_rows(rows.model._meta.db_table, names, values)


def delete_returning_guards(
    rows: models.QuerySet[Any], keys: Collection[UUID], *, waits: bool = True
) -> dict[UUID, int]:
    """Delete rows of a narrow table.

    Returns:
        Deleted job ids -> number of guards. Rows that another transaction deletes at the same time
            are not included.
    """
    with transaction.atomic(using=rows.db):
        locked = lock_by_key(rows, keys, "job_id", "guards", waits=waits)
        gone = {row.job_id: row.guards for row in locked}
        delete_by_key(rows, gone.keys())
        return gone
