"""``DeadLetters``: what is done about a dead letter by itself, as users write it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from typing import Any

from stoker.exceptions import InvalidTaskOption
from stoker.values.durations import PROBLEM, duration_seconds

SHORTEST_SECONDS = 1.0
LONGEST_SECONDS = 366 * 86400.0
MOST_REQUEUES = 100
ErrorClass = type[BaseException] | str


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Dead letters are sent again by themselves, some time after their last failure. Without
    ``requeue_after`` they are not.

    Args:
        requeue_after: how long after the last failure: "90s", "10m", "1h30m", "2d", seconds or a
            timedelta; at least a second.
        max_requeues: so often at most, those by hand counted; then it waits for somebody.
        only: exception classes, or their dotted names: other failures are not sent again. Empty:
            any that was an error, a time-out or a crash.
    """

    requeue_after: float | timedelta | str | None = None
    max_requeues: int = 3
    only: Sequence[ErrorClass] | ErrorClass = ()

    def __post_init__(self) -> None:
        """Check every argument.

        Raises:
            InvalidTaskOption: for the first that is wrong.
        """
        if self.requeue_after is not None:
            object.__setattr__(self, "requeue_after", _seconds(self.requeue_after))
        if not _is_count(self.max_requeues):
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
        """Whether one that was sent again so often may be so once more."""
        return self.requeue_after is not None and requeued_count < self.max_requeues

    def covers(self, reason: str, exception_class: str) -> bool:
        """Whether a failure is of those that are sent again.

        Args:
            reason: that of the dead letter.
            exception_class: its dotted name.
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


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_REQUEUES


def _is_error(one: object) -> bool:
    if isinstance(one, str):
        return all(part.isidentifier() for part in one.split("."))
    return isinstance(one, type) and issubclass(one, BaseException)


def _name(one: ErrorClass) -> str:
    if isinstance(one, str):
        return one if "." in one else f"builtins.{one}"
    return f"{one.__module__}.{one.__qualname__}"


def _names_above(exception_class: str) -> set[str]:
    """The names of an exception's base classes; none, where it is not to be had here."""
    module, _, name = exception_class.rpartition(".")
    try:
        found = getattr(import_module(module), name)
        return {_name(base) for base in found.__mro__}
    except Exception:  # noqa: BLE001 - an import runs the project's code, which may raise anything
        return set()


def letter_policies(value: Any) -> tuple[tuple[str, DeadLetters], ...]:
    """Queue -> policy, as pairs; "" = of all queues."""
    if isinstance(value, DeadLetters):
        return (("", value),)
    if isinstance(value, Mapping) and all(
        isinstance(queue, str) and isinstance(one, DeadLetters) for queue, one in value.items()
    ):
        return tuple(value.items())
    raise ValueError("must be a DeadLetters, or a dict of queue and DeadLetters")
