"""Tasks of the tests, each of which does one thing."""

import asyncio
import logging
import os
import signal
import sys
import time
import warnings
from datetime import datetime
from importlib import import_module

from asgiref.sync import sync_to_async
from django.db import connections, transaction
from django.utils import timezone, translation

from stoker import Cancel, Retry, Snooze, scheduled_moment, task

from tests.app.models import Account, Ledger

logger = logging.getLogger("tests.app")


@task
def nothing() -> None:
    """Do nothing."""


@task
def add(first: int, second: int) -> int:
    return first + second


@task
async def add_later(first: int, second: int) -> int:
    await asyncio.sleep(0.001)
    return first + second


@task
def length_of(text: str) -> int:
    return len(text)


@task
def echo(value: object) -> object:
    return value


@task(takes_context=True)
def write_ledger(context, seconds: float = 0.0, note: str = "") -> int:  # type: ignore[no-untyped-def] # Django's own context has two types
    """Record when this attempt began and ended."""
    line = begin(context, note)
    time.sleep(seconds)
    return end(line)


@task(takes_context=True)
async def write_ledger_async(context, seconds: float = 0.0, note: str = "") -> int:  # type: ignore[no-untyped-def] # as above
    line = await sync_to_async(begin)(context, note)
    await asyncio.sleep(seconds)
    return await sync_to_async(end)(line)


@task(takes_context=True, at_most_once=True)
def note_once(context) -> int:  # type: ignore[no-untyped-def] # as above
    """Do the same with `at_most_once`."""
    return end(begin(context, ""))


def begin(context, note: str) -> Ledger:  # type: ignore[no-untyped-def] # as above
    result = context.task_result
    return Ledger.objects.create(
        job_id=result.id,
        attempt=context.attempt,
        worker=result.worker_ids[-1],
        started_ns=time.monotonic_ns(),
        note=note,
    )


def end(line: Ledger) -> int:
    Ledger.objects.filter(pk=line.pk).update(finished_ns=time.monotonic_ns())
    return line.pk


@task
def fail(message: str = "no") -> None:
    raise ValueError(message)


@task(max_attempts=3, backoff=0.05, takes_context=True)
def succeed_at(context, attempt: int) -> int:  # type: ignore[no-untyped-def] # as above
    if context.attempt < attempt:
        raise ConnectionError(f"attempt {context.attempt}")
    return context.attempt  # type: ignore[no-any-return] # as above


@task(max_attempts=1)
def fail_once() -> None:
    raise RuntimeError("for good")


@task(max_attempts=3, backoff=0.05, retry_on=ConnectionError)
def fail_unretried() -> None:
    raise KeyError("not a connection error")


@task(max_attempts=2)
def ask_for_retry(seconds: float) -> None:
    raise Retry(delay=seconds, reason="asked for")


@task(takes_context=True)
def snooze_until(context, moment: float) -> int:  # type: ignore[no-untyped-def] # as above
    if time.time() < moment:
        raise Snooze(0.1)
    return context.attempt  # type: ignore[no-any-return] # as above


@task
def cancel_itself() -> None:
    raise Cancel("not needed any more")


@task
def imported_modules() -> list[str]:
    return sorted(sys.modules)


@task
def version_of_changing() -> int:
    """Return the version of a module that a test changes (tests/cluster/projects.py)."""
    return int(import_module("changing.tasks").VERSION)


@task(max_attempts=2)
def exit_process(code: int) -> None:
    os._exit(code)


@task(max_attempts=2, backoff=0.05)
def raise_system_exit() -> None:
    raise SystemExit(3)


@task(max_attempts=2)
def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@task
def sleep(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


@task(timeout=0.3, max_attempts=1)
def sleep_too_long(seconds: float) -> None:
    time.sleep(seconds)


@task(timeout=0.3, max_attempts=1)
async def sleep_too_long_async(seconds: float) -> None:
    await asyncio.sleep(seconds)


@task(timeout=0.3, max_attempts=2)
def swallow_timeout(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            time.sleep(until - time.monotonic())
        except BaseException:  # noqa: BLE001, S112 - what bad tasks do
            continue


@task
def return_what_cannot_be_kept() -> object:
    return {1, 2, 3}


@task
def log_a_line(line: str) -> None:
    logger.warning(line)


@task
def warn(sentence: str) -> None:
    warnings.warn(sentence, UserWarning, stacklevel=1)


@task
def say_when() -> datetime:
    return datetime.now().astimezone()


@task
def add_to_account(account_id: int, amount: int) -> None:
    with transaction.atomic():
        account = Account.objects.select_for_update().get(pk=account_id)
        account.total += amount
        account.save()


@task
def enqueue_another(first: int, second: int) -> str:
    return add.enqueue(first, second).id


@task(max_attempts=1)
def empty_and_fail(numbers: list[int]) -> None:
    numbers.clear()
    raise RuntimeError("emptied")


@task
def tell_moment(when: datetime) -> tuple[datetime, datetime | None]:
    return when, scheduled_moment()


@task
def change_context(language: str, zone: str) -> tuple[str, str, int]:
    """Set the language and the time zone. Return the former ones and the id of the connection."""
    before = translation.get_language(), timezone.get_current_timezone_name()
    translation.activate(language)
    timezone.activate(zone)
    return *before, id(connections["default"])


@task
def enqueue_what_cannot_be_kept() -> None:
    echo.enqueue({1, 2, 3})


@task
async def return_what_cannot_be_kept_async() -> object:
    return {1, 2, 3}
