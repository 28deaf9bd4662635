"""Tasks with typical effects on a test's transaction."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.db import IntegrityError, connection, transaction

from stoker import Snooze, task

from tests.app.models import Account

seen: list[Any] = []
"""What ran, in order; cleared by the fixture of the same name."""


@task
def note(word: Any) -> Any:
    seen.append(word)
    return word


@task
async def note_async(word: str) -> str:
    seen.append(word)
    return word


@task
def note_then(word: str, *others: str) -> None:
    """Enqueue the others, the last one first."""
    seen.append(word)
    for other in reversed(others):
        note.enqueue(other)


@task(max_attempts=3, backoff=3600, takes_context=True)
def succeed_at(context: Any, attempt: int) -> int:
    seen.append(context.attempt)
    if context.attempt < attempt:
        raise ConnectionError(f"attempt {context.attempt}")
    return attempt


@task(max_attempts=2, backoff=3600)
def write_and_fail(total: int) -> None:
    Account.objects.create(total=total + Account.objects.count())
    raise ValueError(total)


@task(max_attempts=1)
def break_the_transaction() -> None:
    """In a transaction on PostgreSQL, every later statement fails."""
    Account.objects.create(pk=1)
    Account.objects.create(pk=1)


@task
def survive_an_error() -> None:
    Account.objects.create(pk=1)
    try:
        with transaction.atomic():
            Account.objects.create(pk=1)
    except IntegrityError:
        seen.append("survived")


@task
def on_commit(word: str) -> None:
    transaction.on_commit(partial(seen.append, word))
    with transaction.atomic():
        transaction.on_commit(partial(seen.append, f"{word} inside"))
        seen.append("before")


@task(max_attempts=1)
def leave_a_transaction_open() -> None:
    transaction.atomic().__enter__()
    Account.objects.create(pk=1)


@task(max_attempts=1)
def leave_autocommit_off() -> None:
    transaction.set_autocommit(False)
    Account.objects.create(pk=1)


@task
def say_whether_atomic() -> bool:
    return connection.in_atomic_block


@task
def snooze(seconds: float) -> None:
    seen.append("snoozed")
    raise Snooze(seconds)


@task
def enqueue_itself() -> None:
    enqueue_itself.enqueue()


@task
def enqueue_itself_tomorrow() -> None:
    seen.append("today")
    enqueue_itself_tomorrow.using(run_after=86_400).enqueue()


@task
def exit_the_program() -> None:
    raise SystemExit(3)


@task(timeout=0.05, max_attempts=1)
def take_too_long() -> None:
    while True:
        pass
