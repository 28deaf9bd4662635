"""``DeadLetters``: the policy for requeueing dead letters automatically."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from typing import Any

from stoker.exceptions import InvalidTaskOption
from stoker.values.durations import PROBLEM, duration_seconds, is_whole

SHORTEST_SECONDS = 1.0
LONGEST_SECONDS = 366 * 86400.0
MOST_REQUEUES = 100
ErrorClass = type[BaseException] | str


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Requeue dead letters automatically, some time after their last failure.

    Without ``requeue_after`` they are not requeued.

    Args:
        requeue_after: delay after the last failure: "90s", "10m", "1h30m", "2d", seconds or a
            timedelta; at least a second.
        max_requeues: maximum number of requeues, manual ones included. Further failures wait for
            an operator.
        only: exception classes or their dotted names; other failures are not requeued. Empty: any
            error, time-out or crash.
    """

    requeue_after: float | timedelta | str | None = None
    max_requeues: int = 3
    only: Sequence[ErrorClass] | ErrorClass = ()

    def __post_init__(self) -> None:
        """Check every argument.

        Raises:
            InvalidTaskOption: an argument is wrong.
        """
        if self.requeue_after is not None:
            object.__setattr__(self, "requeue_after", _seconds(self.requeue_after))
        if not is_whole(self.max_requeues) or not 1 <= self.max_requeues <= MOST_REQUEUES:
            raise InvalidTaskOption(
                f"DeadLetters(max_requeues={self.max_requeues!r}): write a whole number from 1 to "
                f"{MOST_REQUEUES}."
            )
        is_one = isinstance(self.only, type | str)
        only = (self.only,) if is_one else tuple(self.only)  # type: ignore[arg-type] # just asked
        for one in only:
            if not _is_error(one):
                raise InvalidTaskOption(
                    f"DeadLetters(only={self.only!r}): write exception classes or their dotted "
                    'names, as in only=[ConnectionError, "shop.bank.NoAnswer"].'
                )
        object.__setattr__(self, "only", only)

    @property
    def cooldown_seconds(self) -> float | None:
        """``requeue_after`` in seconds."""
        return self.requeue_after  # type: ignore[return-value] # made so above

    def allows(self, requeued_count: int) -> bool:
        """Return whether a dead letter with this number of requeues may be requeued again."""
        return self.requeue_after is not None and requeued_count < self.max_requeues

    def covers(self, reason: str, exception_class: str) -> bool:
        """Return whether this policy requeues a dead letter with this reason and exception.

        Args:
            reason: the dead letter's reason.
            exception_class: the exception's dotted name.
        """
        if not self.only:
            return reason in ("error", "timeout", "crash")
        names = {exception_class, *_names_above(exception_class)}
        return any(_name(one) in names for one in self.only)  # type: ignore[union-attr] # a tuple


def _seconds(value: object) -> float:
    try:
        seconds = duration_seconds(value)
    except ValueError:
        seconds = 0.0
    if not SHORTEST_SECONDS <= seconds <= LONGEST_SECONDS:
        raise InvalidTaskOption(
            f"DeadLetters(requeue_after={value!r}) {PROBLEM}, from a second to a year."
        )
    return seconds


def _is_error(one: object) -> bool:
    if isinstance(one, str):
        return all(part.isidentifier() for part in one.split("."))
    return isinstance(one, type) and issubclass(one, BaseException)


def _name(one: ErrorClass) -> str:
    if isinstance(one, str):
        return one if "." in one else f"builtins.{one}"
    return f"{one.__module__}.{one.__qualname__}"


def _names_above(exception_class: str) -> set[str]:
    """Return the dotted names of an exception's base classes, or an empty set if it cannot be
    imported."""
    module, _, name = exception_class.rpartition(".")
    try:
        found = getattr(import_module(module), name)
        return {_name(base) for base in found.__mro__}
    except Exception:  # noqa: BLE001 - an import runs the project's code, which may raise anything
        return set()


def letter_policies(value: Any) -> tuple[tuple[str, DeadLetters], ...]:
    """Return the setting as (queue, policy) pairs; the queue "" stands for all queues."""
    if isinstance(value, DeadLetters):
        return (("", value),)
    if isinstance(value, Mapping) and all(
        isinstance(queue, str) and isinstance(one, DeadLetters) for queue, one in value.items()
    ):
        return tuple(value.items())
    raise ValueError("must be a DeadLetters, or a dict of queue and DeadLetters")
