"""One fresh job, added with as little as can be around the statement: most jobs come one by one,
and for a short statement a cursor takes several times as long as the server.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connections, transaction

from stoker.models.job import COLUMNS, Job, NewJob, rows_of
from stoker.models.ready import Place, Ready

from .clock import instant_us
from .prepared import IDLE, checked, needs_no_cursor
from .sqlite import write_together
from .statements import Written, columns, fetch, insert_into, moves_rows_in_one_statement, statement

PLAIN = re.compile(r"[\w.:/ -]*", re.ASCII)
"""A text that means the same between quotes, whatever the session's settings are."""
BEFORE_NOTICE = 4
"""Results of BEGIN, two inserts, COMMIT."""


def add_fresh(alias: str, job: NewJob, notice: str = "") -> bool:
    """Add a job that nobody can have added before.

    Args:
        notice: a statement for after the commit. It may fail.

    Returns:
        Whether the notice was sent along. It is not where somebody else commits.
    """
    connection = connections[alias]
    sends_both = moves_rows_in_one_statement(connection)
    if job.run_after is not None or job.needs or (sends_both and _binds(connection)):
        Job.objects.using(alias).add([job])
        return False
    if not sends_both:
        _add_both(connection, job)
        return False
    parameters = {
        "id": job.job_id,
        "task": job.task,
        "queue": job.queue,
        "priority": job.priority,
        "package": job.package,
        "enqueued_us": instant_us(job.enqueued_at),
        "rank": -job.priority,
    }
    return _send(connection, statement("job_add_fresh"), parameters, notice)


def _binds(connection: Any) -> bool:
    """Whether the server puts parameters in: then it takes no two statements at once."""
    return bool(connection.settings_dict["OPTIONS"].get("server_side_binding"))


def _add_both(connection: Any, job: NewJob) -> None:
    """Without the look at what is there that others need."""
    written = Written(connection)
    (row,) = rows_of([job], written)
    place = (written.id(job.job_id), *Place(job.job_id, job.queue, -job.priority)[1:])
    inserts = (
        (insert_into(connection, Job, COLUMNS), row),
        (insert_into(connection, Ready, Place._fields), place),
    )
    if write_together(connection, inserts):
        return
    alone = transaction.atomic(using=connection.alias, savepoint=False)
    with alone, connection.cursor() as cursor:
        for insert, values in inserts:
            cursor.execute(insert, values)


def _send(connection: Any, sql: str, parameters: dict[str, Any], notice: str) -> bool:
    """Past Django's cursor, unless somebody minds that."""
    connection.close_if_health_check_failed()
    cursor_class = getattr(connection.Database, "ClientCursor", None)
    if cursor_class is None or not needs_no_cursor(connection):
        with connection.cursor() as cursor:
            cursor.execute(sql, parameters)
        return False
    connection.validate_thread_sharing()
    connection.validate_no_broken_transaction()
    with connection.wrap_database_errors:
        driver = connection.connection
        is_begun = driver.autocommit or driver.pgconn.transaction_status != IDLE
        if is_begun and PLAIN.fullmatch(parameters["task"] + parameters["queue"]):
            written = {name: _written(value) for name, value in parameters.items()}
            return _send_text(connection, sql % written, notice)
        cursor_class(driver).execute(sql, parameters)
        return False


def _send_text(connection: Any, sql: str, notice: str) -> bool:
    """Past the driver's cursor, too. The notice is not part of the transaction: PostgreSQL lets no
    two commit at the same time that notify."""
    driver, execute = connection.connection, connection.Database.generators.execute
    session = driver.pgconn
    tells = bool(notice) and session.transaction_status == IDLE
    text = f"BEGIN;{sql};COMMIT;{notice}" if tells else sql
    try:
        with driver.lock:
            session.send_query(text.encode())
            results = driver.wait(execute(session))
        for result in results[:BEFORE_NOTICE]:
            checked(session, result)
    except BaseException:
        if tells:
            with suppress(Exception):  # what is wrong has been said
                driver.rollback()
        raise
    return tells


def _written(value: Any) -> str:
    """As it stands in a statement."""
    if isinstance(value, UUID):
        return f"'{value.hex}'"
    if isinstance(value, bytes):
        return f"E'\\\\x{value.hex()}'"
    return f"'{value}'" if isinstance(value, str) else str(value)


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
