"""Tasks with guards that record who ran when, and with which fencing number."""

import os
import time
from pathlib import Path
from typing import Any

from django.db import OperationalError

from stoker import Limit, Lock, Unique, fencing_number, task

BEAT_SECONDS = 0.02


@task(lock=Lock("door"))
def enter() -> None:
    """Need the lock."""


@task(lock=Lock("door", on_busy="skip"))
def enter_or_leave_it() -> None:
    """Be skipped if the lock is held."""


@task(lock=Lock("door", on_busy="retry"))
def enter_or_come_back() -> None:
    """Be retried if the lock is held."""


def _beat(context: Any, path: str, key: str, seconds: float) -> None:
    """Record each moment in which this attempt runs, without a database."""
    until = time.monotonic() + seconds
    began_ns = time.monotonic_ns()
    job = f"{key} {fencing_number()} {context.task_result.id} {context.attempt} {os.getpid()}"
    with Path(path).open("ab", buffering=0) as file:
        while True:
            file.write(f"{job} {began_ns} {time.monotonic_ns()}\n".encode())
            left = until - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(BEAT_SECONDS, left))


@task(takes_context=True, lock=Lock("{key}"))
def run_alone(context, path: str, key: str, seconds: float) -> None:  # type: ignore[no-untyped-def] # Django's own context has two types
    _beat(context, path, key, seconds)


@task(takes_context=True, limit=Limit(2, "{key}"))
def run_in_pairs(context, path: str, key: str, seconds: float) -> None:  # type: ignore[no-untyped-def] # as above
    _beat(context, path, key, seconds)


@task(takes_context=True, limit=(Limit(5, "{key}"), Limit(40, "everybody")))
def run_in_fives(context, path: str, key: str, seconds: float) -> None:  # type: ignore[no-untyped-def] # as above
    _beat(context, path, key, seconds)


def key_from_lost_database() -> str:
    raise OperationalError("the project's own database went away")


@task(unique=Unique(key_from_lost_database))
def pay_with_lost_database() -> None:
    """Never enqueued: its unique key raises."""


@task(unique=Unique("till"))
def count_the_till() -> None:
    """Wait or run once at a time."""
