"""Rows of one table, by their primary keys: what the engine of their database does for them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

from django.db import models, transaction

from .engines import engine_of


def with_keys(rows: models.QuerySet[Any], keys: Collection[UUID]) -> models.QuerySet[Any]:
    """Return those of these rows that have one of these primary keys."""
    return engine_of(rows.db).with_keys(rows, keys)


def lock_by_key(
    rows: models.QuerySet[Any], keys: Collection[UUID], *names: str, waits: bool = True
) -> list[Any]:
    """Lock the rows of these primary keys, in the order of the keys. See ``Engine.lock_by_key``."""
    return engine_of(rows.db).lock_by_key(rows, keys, *names, waits=waits)


def delete_by_key(rows: models.QuerySet[Any], keys: Collection[UUID]) -> None:
    """Delete the rows of these primary keys, which the caller has locked."""
    engine_of(rows.db).delete_by_key(rows, keys)


def update_by_key(rows: models.QuerySet[Any], keys: Collection[UUID], **values: Any) -> None:
    """Write these values to the rows of these primary keys, which the caller has locked."""
    engine_of(rows.db).update_by_key(rows, keys, **values)


def update_each(
    rows: models.QuerySet[Any], name: str, numbers: Mapping[UUID, int], **copied: str
) -> None:
    """Write to each of these rows its own number. See ``Engine.update_each``."""
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
        Those deleted, each with the number of its needs: what another transaction deletes at the
        same time is not ours.
    """
    with transaction.atomic(using=rows.db):
        locked = lock_by_key(rows, keys, "job_id", "guards", waits=waits)
        gone = {row.job_id: row.guards for row in locked}
        delete_by_key(rows, gone.keys())
        return gone
