"""At most once: start jobs of tasks with ``at_most_once=True`` only once.

::

    INSERT the job's id     refused: it has started before. It fails without running.
    COMMIT
        the task            whatever its outcome, and whether or not that is recorded

The primary key prevents a second start, whatever the reason for the second delivery: after a stop,
a lost lease, or a crash after which it is unknown whether the task had started.
"""

from __future__ import annotations

from contextlib import nullcontext, suppress
from typing import Any

from django.db import DatabaseError, IntegrityError, InterfaceError, connections, transaction
from django.utils import timezone

from stoker.conf import Settings
from stoker.exceptions import AlreadyBegun
from stoker.models import Begun
from stoker.store.transactions import autocommit, may_pass
from stoker.tasks.registry import imported_task

from .package import Package


def is_once(task: Any) -> bool:
    """Return whether the task has ``at_most_once``. Accepts Stoker's tasks and Django's."""
    return bool(getattr(task, "at_most_once", False))


def note_begin(settings: Settings, package: Package, worker_id: str) -> None:
    """Record in a separate transaction that a job starts now.

    Raises:
        AlreadyBegun: the job has started before.
        DatabaseError, InterfaceError: the store cannot be reached, or is read-only.
    """
    alias = settings.database
    row = Begun(job_id=package.job_id, worker_id=worker_id, begun_at=timezone.now())
    # Inside another transaction (a test that runs jobs inline), a refusal must not break that one.
    is_inside = connections[alias].in_atomic_block
    with autocommit(alias):
        try:
            with transaction.atomic(using=alias) if is_inside else nullcontext():
                row.save(using=alias, force_insert=True)
        except IntegrityError as error:
            before = Begun.objects.using(alias).filter(pk=package.job_id).first()
            raise AlreadyBegun(_refusal(before)) from error
        except (DatabaseError, InterfaceError) as error:
            if is_inside or not (may_pass(error) and _is_stored(alias, row)):
                raise


def _is_stored(alias: str, row: Begun) -> bool:
    """Return whether this start was stored although the answer was lost. Otherwise the next
    delivery would take it for the start of an attempt. False if the store does not answer."""
    connections[alias].close()
    stored = Begun.objects.using(alias).filter(worker_id=row.worker_id, begun_at=row.begun_at)
    with suppress(DatabaseError, InterfaceError):
        return stored.filter(pk=row.pk).exists()
    return False


def has_not_begun(settings: Settings, package: Package | None) -> bool:
    """Return whether the job's task has ``at_most_once`` and the job has not started.

    False if the task is not imported here. Nothing is known then about the start of the job, and
    the import may be what ended its cluster.
    """
    if package is None or not is_once(imported_task(package.task)):
        return False
    return not Begun.objects.using(settings.database).filter(pk=package.job_id).exists()


def _refusal(before: Begun | None) -> str:
    when = (
        f" at {before.begun_at:%Y-%m-%d %H:%M:%S %Z} in worker {before.worker_id}" if before else ""
    )
    return f"The job has begun already{when}. Its task has at_most_once=True: it is not run again."
