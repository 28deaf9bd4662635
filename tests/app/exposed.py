"""Tasks that can be enqueued over the HTTP API, and one that cannot."""

from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from stoker import TaskContext, Unique, task

if TYPE_CHECKING:
    from collections.abc import Sequence


@task(exposed="numbers.add")
def add(first: int, second: int = 0) -> int:
    """Add two numbers.

    Of any size.
    """
    return first + second


@task(exposed=True)
def note(when: datetime, *, amount: Decimal, order: UUID | None = None, tags: tuple[str, ...] = ()):  # type: ignore[no-untyped-def] # on purpose
    return [when, amount, order, tags]


@task(exposed="loose")
def loose(*args, **kwargs):  # type: ignore[no-untyped-def] # on purpose
    return [args, kwargs]


@task(exposed="with.context", takes_context=True)
def with_context(context: TaskContext, name: str) -> str:
    return name


@task(exposed="once", unique=Unique("{number}"))
def once(number: int) -> int:
    return number


class Parcel(NamedTuple):
    """A type that pydantic cannot complete: one of its parts is imported for type checkers only."""

    weights: "Sequence[int]"


@task(exposed="ship")
def ship(parcel: Parcel, more: int = 0) -> int:
    (weights,) = parcel
    return sum(weights) + more


@task
def hidden() -> None:
    """A task that is not exposed."""
