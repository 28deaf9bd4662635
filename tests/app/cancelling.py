"""Tasks that are cancelled while they run: some end, some do not."""

import asyncio
import signal
import time
from pathlib import Path

from django.db import models

from stoker import Lock, TaskCancelled, task

from tests.app.models import Account

LONG_SECONDS = 600.0
STEP_SECONDS = 0.01


@task(max_attempts=3, backoff=0.01)
def wait(began: str) -> None:
    """Sleep in one call, which only a signal ends."""
    Path(began).touch()
    time.sleep(LONG_SECONDS)


@task(max_attempts=3, backoff=0.01)
def work(began: str) -> None:
    """Loop in Python, where an error can be raised in a thread. Rename the file in the end."""
    Path(began).touch()
    try:
        _work_on()
    finally:
        Path(began).rename(f"{began}-cleaned")


@task(max_attempts=3, backoff=0.01)
async def wait_async(began: str) -> None:
    Path(began).touch()  # noqa: ASYNC240 - it is quick enough
    try:
        await asyncio.sleep(LONG_SECONDS)
    finally:
        Path(began).rename(f"{began}-cleaned")  # noqa: ASYNC240 - it is quick enough


@task(max_attempts=3, backoff=0.01, lock=Lock("cancelled"))
def work_locked(began: str) -> None:
    work.func(began)


@task(max_attempts=3, backoff=0.01, atomic=True)
def work_atomic(began: str, account_id: int) -> None:
    Account.objects.filter(pk=account_id).update(total=models.F("total") + 1)
    work.func(began)


@task(max_attempts=3, backoff=0.01)
def do_not_listen(began: str) -> None:
    """Ignore signals and errors."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGURG})
    Path(began).touch()
    until = time.monotonic() + LONG_SECONDS
    while time.monotonic() < until:
        try:
            _work_on()
        except BaseException:  # noqa: BLE001, S112 - just that
            continue


@task(max_attempts=3, backoff=0.01)
def hear_and_go_on(began: str) -> None:
    """Make a file when cancelled, and continue."""
    Path(began).touch()
    try:
        _work_on()
    except TaskCancelled:
        Path(f"{began}-told").touch()
    do_not_listen.func(began)


@task(max_attempts=3, backoff=0.01)
def end_in_good_order(began: str) -> str:
    Path(began).touch()
    try:
        _work_on()
    except TaskCancelled as told:
        return f"ended: {told}"
    return "not told"


@task(max_attempts=3, backoff=300)
def fail_when_told(began: str) -> None:
    Path(began).touch()
    try:
        _work_on()
    except TaskCancelled:
        raise ValueError("not now") from None


def _work_on() -> None:
    until = time.monotonic() + LONG_SECONDS
    while time.monotonic() < until:
        time.sleep(STEP_SECONDS)
