"""Steps of workflows that leave traces, however they end."""

import time
from pathlib import Path
from typing import Any

from stoker import task

from tests.app.models import Ledger


class Wrong(Exception):
    """An error that is not retried."""


class Shaky(Exception):
    """An error that occurs only once."""


TRIES: dict[str, Any] = {"max_attempts": 1000, "max_crashes": 1000, "backoff": 0.01}


@task(**TRIES)
def member(number: int, seconds: float) -> int:
    """Sleep for a moment."""
    time.sleep(seconds)
    return number


@task(atomic=True, **TRIES)
def gather(numbers: list[int]) -> int:
    """Record how many numbers there are, and return their sum."""
    write(f"gathered {len(numbers)} {len(set(numbers))}")
    return sum(numbers)


@task(atomic=True, takes_context=True, give_up_on=Wrong, **TRIES)
def link(context, before: Any, chain: int, number: int, how: str) -> int:  # type: ignore[no-untyped-def] # Django's own context has two types
    """Record this step of a chain and the result before it."""
    if how == "shaky" and context.attempt == 1:
        raise Shaky
    write(f"{chain}:{number} after {before}")
    if how in ("wrong", "optional"):
        raise Wrong
    return number


@task(atomic=True, **TRIES)
def complain(result: Any, chain: int) -> None:
    """Record the failure of a chain."""
    write(f"{chain}: {result.state.value}")


def write(note: str) -> None:
    Ledger.objects.create(job_id="", attempt=0, worker="", started_ns=0, note=note)


@task(max_attempts=1, timeout=60)
def fail_when_there(path: str) -> None:
    """Fail as soon as the file exists."""
    while not Path(path).exists():
        time.sleep(0.01)
    raise Wrong
