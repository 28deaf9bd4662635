"""Calls of a database's engine, for modules without a ``Store``: statements on rows given by
primary key, transactions that decide, deadlines."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any
from uuid import UUID

from django.db import connections, models, transaction

from stoker.conf import Settings

from .engines import engine_of
from .engines.base import BLOCKED
from .written import parts_of

INSERTED_AT_ONCE, INSERT_BYTES = 500, 1 << 18
"""Maximum number of rows with packages in one INSERT, and of bytes of their packages. MariaDB and
MySQL may be set to refuse statements above 1 MiB, and the driver doubles some bytes."""


def with_keys(rows: models.QuerySet[Any], keys: Collection[UUID]) -> models.QuerySet[Any]:
    """Restrict the query to the given primary keys."""
    return engine_of(rows.db).with_keys(rows, keys)


def lock_by_key(
    rows: models.QuerySet[Any], keys: Collection[UUID], *names: str, waits: bool = True
) -> list[Any]:
    """Lock rows in the order of their primary keys. See ``Engine.lock_by_key``."""
    return engine_of(rows.db).lock_by_key(rows, keys, *names, waits=waits)


def delete_by_key(rows: models.QuerySet[Any], keys: Collection[UUID]) -> int:
    """Delete rows by primary key. Wait for no others. Return their number."""
    return engine_of(rows.db).delete_by_key(rows, keys)


def delete_of_jobs(rows: models.QuerySet[Any], job_ids: Collection[UUID]) -> None:
    """Delete rows of jobs by the index of ``job_id``. Wait for no others."""
    engine_of(rows.db).delete_of_jobs(rows, job_ids)


def update_by_key(rows: models.QuerySet[Any], keys: Collection[UUID], **values: Any) -> None:
    """Set values in rows given by primary key. The caller has locked the rows."""
    engine_of(rows.db).update_by_key(rows, keys, **values)


def insert_rows(
    rows: models.QuerySet[Any], names: Sequence[str], values: Sequence[Sequence[Any]]
) -> None:
    """Insert rows into the table of this query set. See ``Engine.insert_rows``."""
    engine_of(rows.db).insert_rows(rows.model._meta.db_table, names, values)


def insert_with_packages(rows: models.QuerySet[Any], new: Sequence[Any], **options: Any) -> None:
    """Insert rows that have packages, see ``bulk_create``. Use several statements if there are many
    rows, or if the packages are large: MariaDB refuses statements above ``max_allowed_packet``.

    Raises:
        PackageTooLarge: the database accepts no value of that size.
    """
    engine = engine_of(rows.db)
    for row in new:
        engine.refuse_too_large(row.package)
    for part in parts_of(new, INSERTED_AT_ONCE, INSERT_BYTES):
        engine.insert_models(rows, part, **options)


def delete_returning_guards(
    rows: models.QuerySet[Any], keys: Collection[UUID], *, waits: bool = True
) -> dict[UUID, int]:
    """Delete rows of a narrow table. For blocked jobs, record how long they were blocked.

    Returns:
        Deleted job ids -> number of guards. Rows that another transaction deletes at the same time
            are not included.
    """
    with transaction.atomic(using=rows.db):
        locked = lock_by_key(rows, keys, "job_id", "guards", waits=waits)
        gone = {row.job_id: row.guards for row in locked}
        if rows.model._meta.db_table == BLOCKED:
            engine_of(rows.db).add_waits_of_blocked(gone)
        delete_by_key(rows, gone.keys())
        return gone


def deciding(alias: str, lock_seconds: float | None = None) -> AbstractContextManager[None]:
    """Open a transaction that decides, see ``Sessions.deciding``."""
    return engine_of(alias).deciding(lock_seconds)


def set_deadlines(
    settings: Settings, *, keeps_statements: bool = False, is_cluster: bool = True
) -> None:
    """Set a deadline for every call of this process to the store's database. Never call this in a
    worker: its connections belong to user code.

    Args:
        settings: the backend's.
        keeps_statements: whether to keep prepared statements, for a process that repeats its calls.
        is_cluster: whether this is a process of a cluster. It waits only briefly for locks, and the
            server ends its idle transactions. A command waits longer, because it is not retried.
    """
    connection = connections[settings.database]
    options: dict[str, Any] = connection.settings_dict.setdefault("OPTIONS", {})
    options.pop("isolation_level", None)  # guards decide on what others have committed by then
    engine = engine_of(settings.database)
    session = engine.limit_sessions(
        settings, keeps_statements=keeps_statements, is_cluster=is_cluster
    )
    engine.limit_calls(connection, settings.database_seconds, session)
    connection.settings_dict["CONN_MAX_AGE"] = None
    connection.settings_dict["CONN_HEALTH_CHECKS"] = True  # after a long pause, see Patience
    connection.settings_dict["AUTOCOMMIT"] = True  # this process never commits explicitly
    connection.close()
