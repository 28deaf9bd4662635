"""Tasks that log and print."""

import asyncio
import contextvars
import logging
import sys
import threading
import time
from pathlib import Path

from stoker import task

logger = logging.getLogger("shop.orders")


@task(max_attempts=2, backoff=0)
def log_and_print(order: int, *, fails: bool = False) -> None:
    logger.debug("too detailed")
    logger.info("order %s", order)
    print("printed", order)
    print("complaint", file=sys.stderr)
    print("no line feed", end="")
    if fails:
        try:
            raise ValueError(order)  # noqa: TRY301 - as tasks do
        except ValueError:
            logger.exception("order %s failed", order)
            raise


@task
async def log_async(order: int) -> None:
    for step in range(3):
        print(f"order {order} step {step}")
        await asyncio.sleep(0.01)


@task
def log_in_threads(order: int) -> None:
    """Log in this thread, and in one that runs in its context."""
    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(logger.info, "order %s thread", order))
    thread.start()
    thread.join()
    logger.info("order %s done", order)


@task(max_attempts=1)
def log_until(end: str) -> None:
    """Log, and go on until the file is there."""
    logger.info("before")
    while not Path(end).exists():
        time.sleep(0.01)
    logger.info("after")


@task
def log_much(count: int, characters: int) -> None:
    for number in range(count):
        print(f"{number} ".ljust(characters, "x"))


@task(redact=["pin"])
def log_secrets(pin: str, password: str, order: int) -> None:
    logger.info("pin %s and %s for %s", pin, password, order)
    print(f"{password}{pin}")


def log_from_path(order: int) -> None:
    """Called by its path, through Django Q's names."""
    logger.info("order %s", order)
