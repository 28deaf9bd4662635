"""Tasks that write each attempt to the ledger."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from django.conf import settings

from stoker import Limit, Lock, Rate, Unique, exponential, scheduled_moment, task

from tests.crash.ledger import Ledger
from tests.crash.verdict import LIMIT, RATE_PER_SECOND

BEAT_SECONDS = 0.1
PATIENT: Any = {
    "max_attempts": 100,
    "max_crashes": 100,
    "backoff": exponential(base=1.2, cap=1),
    "takes_context": True,
}


@cache
def ledger() -> Ledger:
    return Ledger(Path(settings.LEDGER))


class PlannedError(Exception):
    """Raised by tasks that fail on purpose."""


@task(**PATIENT)
def plain(context: Any, token: str, seconds: float = 0.0, failures: int = 0) -> str:
    return attempt(context, token, seconds, failures)


@task(**PATIENT)
async def plain_async(context: Any, token: str, seconds: float = 0.0) -> str:
    line = begin(context, token)
    with interruptions_told(line):
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            await asyncio.sleep(min(BEAT_SECONDS, left))
            beat(line)
    return end(line)


@task(**PATIENT, priority=50)
def probe(context: Any, token: str) -> str:
    return attempt(context, token)


@task(takes_context=True, max_attempts=1)
def once(context: Any, token: str, seconds: float = 0.0) -> str:
    return attempt(context, token, seconds)


@task(takes_context=True, max_attempts=1)
def failing(context: Any, token: str, failures: int = 1) -> str:
    return attempt(context, token, 0, failures)


@task(**PATIENT, lock=Lock("crash:{key}"))
def locked(context: Any, token: str, key: str, seconds: float = 0.0) -> str:
    return attempt(context, token, seconds, lock=key)


@task(**PATIENT, limit=Limit(LIMIT, "crash:{key}"))
def limited(context: Any, token: str, key: str, seconds: float = 0.0) -> str:
    return attempt(context, token, seconds, limit=key)


@task(**PATIENT, unique=Unique("{key}"))
def unique(context: Any, token: str, key: str, seconds: float = 0.0) -> str:
    return attempt(context, token, seconds, unique=key)


@task(**PATIENT, sequence="crash:{key}")
def sequenced(context: Any, token: str, key: str, failures: int = 0) -> str:
    return attempt(context, token, 0, failures, sequence=key)


@task(**PATIENT, rate=Rate(f"{RATE_PER_SECOND}/s", "crash"))
def rated(context: Any, token: str) -> str:
    return attempt(context, token, rate="crash")


@task(**PATIENT)
def scheduled(context: Any, name: str) -> str:
    moment = scheduled_moment()
    assert moment is not None
    return attempt(context, "", schedule=name, moment=moment.isoformat())


def attempt(context: Any, token: str, seconds: float = 0.0, failures: int = 0, **facts: Any) -> str:
    """Write the start, the beats and the end of this attempt."""
    line = begin(context, token, **facts)
    with interruptions_told(line):
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(BEAT_SECONDS, left))
            beat(line)
    if context.attempt <= failures:
        ledger().write("raised", nonce=line["nonce"])
        raise PlannedError(token)
    return end(line)


def begin(context: Any, token: str, **facts: Any) -> dict[str, Any]:
    return ledger().write(
        "started",
        nonce=secrets.token_hex(8),
        job=context.task_result.id,
        attempt=context.attempt,
        token=token,
        parent=os.getppid(),
        **facts,
    )


@contextmanager
def interruptions_told(line: dict[str, Any]) -> Iterator[None]:
    """Write when the cluster interrupts the task, for example at its stop deadline."""
    try:
        yield
    except BaseException as error:
        ledger().write("interrupted", nonce=line["nonce"], error=type(error).__name__)
        raise


def beat(line: dict[str, Any]) -> None:
    ledger().write("beat", is_synced=False, nonce=line["nonce"])


def end(line: dict[str, Any]) -> str:
    ledger().write("ended", nonce=line["nonce"])
    return str(line["nonce"])
