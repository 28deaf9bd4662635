"""Atomic: what a task writes, and that it is done, are committed together or not at all.

::

    BEGIN
        the task        raises: rolled back. What it raised is recorded then, as of any task.
        ack, result     the lease is stale: rolled back. Somebody else has the job.
    inner blocks        one that the task has entered and not left: rolled back, as above.
    COMMIT              raises: nobody guesses what the database made of it. It is reported as a
                        failure, and recorded as one only if the lease is still there: it goes with
                        the commit. As long as that is not decided, the lease's row is locked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from django.db import connections, transaction

from stoker.brokers import broker_for
from stoker.brokers.base import Lease
from stoker.compat import InvalidTask
from stoker.conf import Settings
from stoker.exceptions import LeaseLost, TransactionLeftOpen
from stoker.models.commits import after_commit, autocommit

from .finish import finish
from .outcomes import Attempted

logger = logging.getLogger("stoker")

T = TypeVar("T")


def run_and_record(
    settings: Settings, run: Callable[[], T], attempted_of: Callable[[T], Attempted]
) -> T:
    """Run a task and record that it succeeded, in one transaction on the database of the queues.

    Args:
        run: the task, its time limit included: that must be over when the attempt is recorded.
        attempted_of: the attempt, given what ``run`` returned.

    Returns:
        What ``run`` returned; it is recorded.

    Raises:
        LeaseLost: nothing is written, and there is nothing to record.
        TransactionLeftOpen: the task has not left a block of ``transaction.atomic()`` inside.
        Exception: as the task did, or the COMMIT. It is to be recorded, unless the lease is stale.
    """
    alias, broker = settings.database, broker_for(settings)
    if not broker.capabilities.atomic:
        raise InvalidTask(
            f"A task with atomic=True needs a queue in the database, and {broker.info()['broker']} "
            "is none."
        )
    is_committed: list[bool] = []
    try:
        with autocommit(alias), transaction.atomic(using=alias):
            # Before any that the task adds, which may raise after the commit.
            after_commit(alias, lambda: is_committed.append(True))
            with _inner_blocks_closed(alias):
                ran = run()
            _refuse_stale(finish(settings, broker, [attempted_of(ran)]))
    except Exception:
        if not is_committed:
            raise
        logger.exception("A hook of on_commit failed; its job is done and recorded all the same.")
    return ran


@contextmanager
def _inner_blocks_closed(alias: str) -> Iterator[None]:
    """Roll back the blocks of ``transaction.atomic()`` that were entered here and not left. Django
    would take the end of the outer one for theirs, and commit nothing."""
    connection = connections[alias]
    depth = len(connection.atomic_blocks)
    error: BaseException = TransactionLeftOpen(
        f"The task has not left a block of transaction.atomic() on the database {alias!r}. "
        "It was rolled back with all that the task wrote there."
    )
    is_refused = False
    try:
        yield
    finally:
        while len(connection.atomic_blocks) > depth:
            is_refused = True
            connection.atomic_blocks[-1].__exit__(type(error), error, None)
    if is_refused:
        raise error


def _refuse_stale(stale: set[Lease]) -> None:
    if stale:
        raise LeaseLost("The lease was lost before the job could be recorded as done.")
