"""Tasks that fail until the test repairs what they need, and become dead letters."""

import time
from pathlib import Path

from stoker import DeadLetters, InSequence, Unique, task
from stoker.models import DeadLetter

from tests.app.models import Account

broken: set[str] = set()
"""Arguments for which tasks fail, in this process."""


class Broken(Exception):
    """Raised for arguments in `broken`."""


@task(max_attempts=1)
def charge(order: str, note: str = "") -> str:
    """Charge an order, if it is not broken."""
    return _use(order)


@task(max_attempts=2, backoff=3600)
def insist(order: str) -> str:
    """Charge an order. Try again after an hour."""
    return _use(order)


@task(max_attempts=1)
def keep(thing, note=None):  # type: ignore[no-untyped-def] # it takes anything
    return _use(thing)


@task(max_attempts=1, unique=Unique("feed:{feed}"))
def fetch(feed: str, note: str = "") -> str:
    return _use(feed)


@task(max_attempts=1, unique=Unique("page:{page}", within=3600))
def fetch_hourly(page: str) -> str:
    return _use(page)


@task(max_attempts=1, sequence=InSequence("account:{account}", after_failure="halt"))
def book(account: str, entry: str) -> str:
    return _use(entry)


@task(
    max_attempts=1,
    unique=Unique("entry:{account}:{entry}"),
    sequence=InSequence("account:{account}", after_failure="halt"),
)
def book_once(account: str, entry: str) -> str:
    return _use(entry)


def _use(thing: str) -> str:
    if thing in broken:
        raise Broken(f"{thing} is broken")
    return thing


TOLD: list[str] = []
"""Dead letters that on_dead_letter was called with."""


def _hear(letter: DeadLetter) -> None:
    TOLD.append(f"{letter.task} {letter.failure_count}")
    if "the ear" in broken:
        raise Broken("the ear is broken")


@task(
    max_attempts=1,
    dead_letters=DeadLetters(requeue_after=60, max_requeues=2, only=Broken),
    on_dead_letter=_hear,
)
def pay(order: str) -> str:
    if order == "no order":
        raise ValueError(order)
    return _use(order)


def _owner_of(order: str) -> str:
    """Return the key of an order, unless its owner is broken."""
    return _use(f"owner of {order}")


@task(max_attempts=1, unique=Unique(_owner_of), dead_letters=DeadLetters(requeue_after=60))
def refund(order: str) -> str:
    return _use(order)


def _wait_beside(letter: DeadLetter) -> None:
    """Wait until a file exists, whose path is the failed job's message."""
    path = Path(letter.message)
    path.with_suffix(".began").touch()
    while not path.exists():
        time.sleep(0.05)


@task(max_attempts=1, on_dead_letter=_wait_beside)
def fail_and_wait_for(path: str) -> None:
    raise Broken(path)


@task(max_attempts=1, unique=Unique("storm:{number}"))
def in_storm(number: int) -> int:
    """Always fail for even numbers, and for all numbers until the storm is over."""
    calm = Account.objects.filter(total__gt=0).exists()
    if number % 2 == 0 or not calm:
        raise Broken(f"{number} is broken")
    return number


@task(max_attempts=1, dead_letters=DeadLetters(requeue_after=1))
def mend_itself() -> int:
    """Fail once, then succeed."""
    is_there = Account.objects.exists()
    Account.objects.get_or_create(total=1)
    if not is_there:
        raise Broken("not yet")
    return 1


@task(max_attempts=1, atomic=True)
def mend_in_a_transaction() -> int:
    if not Account.objects.exists():
        raise Broken("not yet")
    return 1
