"""Tasks with atomic=True, and ways in which they can go wrong."""

import os
import signal
import time
from contextlib import nullcontext
from pathlib import Path

from django.db import IntegrityError, OperationalError, connection, models, transaction

from stoker import Cancel, Retry, Snooze, task

from tests.app import tasks
from tests.app.models import Account, Ledger

TRIES = {"max_attempts": 3, "backoff": 0.01}


@task(atomic=True, max_attempts=3, backoff=0.01)
def add(account_id: int, seconds: float = 0.0) -> int:
    """Add 1 in the middle of a sleep."""
    time.sleep(seconds / 2)
    Account.objects.filter(pk=account_id).update(total=models.F("total") + 1)
    time.sleep(seconds / 2)
    return account_id


@task
def add_without(account_id: int, seconds: float = 0.0) -> int:
    """Do the same without `atomic`."""
    Account.objects.filter(pk=account_id).update(total=models.F("total") + 1)
    time.sleep(seconds)
    return account_id


@task(atomic=True, max_attempts=3, backoff=0.01)
def add_and_enqueue(account_id: int) -> str:
    add.func(account_id)
    return tasks.nothing.enqueue().id


@task(atomic=True, max_attempts=3, backoff=0.01)
def add_and_raise(account_id: int, what: str) -> None:
    add_and_enqueue.func(account_id)
    raise {
        "error": ValueError("no"),
        "retry": Retry(0.01),
        "snooze": Snooze(0.01),
        "cancel": Cancel("enough"),
        "exit": SystemExit(1),
    }[what]


@task(atomic=True, max_attempts=3, backoff=0.01)
def add_and_return_what_cannot_be_kept(account_id: int) -> object:
    add.func(account_id)
    return {1, 2, 3}


@task(atomic=True, max_attempts=3, backoff=0.01)
def add_and_swallow_a_database_error(account_id: int) -> None:
    """Break the transaction: Django then raises an error that the task has swallowed."""
    add.func(account_id)
    try:
        with transaction.atomic(savepoint=False):
            Account.objects.create(pk=account_id)
    except IntegrityError:
        pass


@task(atomic=True, max_attempts=3, backoff=0.01)
def add_and_create_another_even_if_one_is_locked(
    account_id: int, locked_id: int, savepoint: bool
) -> None:
    add.func(account_id)
    try:
        with transaction.atomic() if savepoint else nullcontext():
            list(Account.objects.select_for_update().filter(pk=locked_id))
    except OperationalError:
        pass
    Account.objects.create()


@task(atomic=True, max_attempts=3, backoff=0.01)
def add_and_close_the_connection(account_id: int) -> None:
    add.func(account_id)
    connection.close()


@task(atomic=True, max_attempts=3, backoff=0.01)
def add_with_a_hook_that_raises(account_id: int) -> None:
    add.func(account_id)
    transaction.on_commit(_raise)


def _raise() -> None:
    raise ValueError("after the commit")


@task(atomic=True, max_attempts=3)
def add_and_die_once(account_id: int, path: str, moment: str) -> None:
    """Be killed before the commit or right after it, but only in the first attempt."""
    add.func(account_id)
    if Path(path).exists():
        return
    Path(path).touch()
    if moment == "before":
        _die()
    transaction.on_commit(_die)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@task(atomic=True)
def add_and_stay_after_the_commit(account_id: int, seconds: float, path: str) -> None:
    """Touch the file after a slow on_commit hook."""
    add.func(account_id)
    transaction.on_commit(lambda: time.sleep(seconds))
    transaction.on_commit(Path(path).touch)


@task(atomic=True, max_attempts=1, timeout=0.3)
def add_too_long(account_id: int, seconds: float) -> None:
    add.func(account_id)
    time.sleep(seconds)


@task(atomic=True, max_attempts=1, timeout=0.3)
def add_and_swallow_the_timeout(account_id: int, seconds: float) -> None:
    add.func(account_id)
    tasks.swallow_timeout.func(seconds)


@task(atomic=True, takes_context=True, max_attempts=100, max_crashes=100, backoff=0.01)
def add_and_sign(context, account_id: int, before: float, after: float) -> int:  # type: ignore[no-untyped-def] # Django's own context has two types
    """Add 1, and record the attempt in the ledger."""
    began_ns = time.monotonic_ns()
    time.sleep(before)
    Account.objects.filter(pk=account_id).update(total=models.F("total") + 1)
    result = context.task_result
    Ledger.objects.create(
        job_id=result.id,
        attempt=context.attempt,
        worker=result.worker_ids[-1],
        started_ns=began_ns,
    )
    time.sleep(after)
    return context.attempt  # type: ignore[no-any-return] # as above


@task(takes_context=True, max_attempts=100, max_crashes=100, backoff=0.01)
def add_and_sign_without(context, account_id: int, before: float, after: float) -> int:  # type: ignore[no-untyped-def] # as above
    """Do the same without `atomic`."""
    return add_and_sign.func(context, account_id, before, after)  # type: ignore[no-any-return] # as above


@task(atomic=True, max_attempts=1)
def add_and_leave_an_inner_block_open(account_id: int, *, savepoint: bool) -> int:
    add.func(account_id)
    transaction.atomic(savepoint=savepoint).__enter__()
    return account_id
