"""How long to wait before the next attempt.

A backoff is any callable ``backoff(exception, task_result)`` that returns seconds, a timedelta, or
None, which means "do not retry". The backoffs in this module count attempts by
``task_result.attempts``, from 1.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from stoker.exceptions import InvalidTaskOption
from stoker.values.durations import number_of_seconds

Seconds = float | timedelta
Backoff = Callable[[BaseException, Any], Seconds | None]


@dataclass(frozen=True, slots=True)
class Exponential:
    """See :func:`exponential`."""

    base: float
    cap: float
    jitter: bool
    source: random.Random | None = None

    def __str__(self) -> str:
        return f"{self.base:g} ** attempt s, at most {self.cap:g} s{_jittered(self.jitter)}"

    def __call__(self, exception: BaseException, task_result: Any) -> float:
        try:
            delay = min(self.cap, self.base ** _attempt(task_result))
        except OverflowError:
            delay = self.cap
        return _spread(delay, self.source) if self.jitter else delay


@dataclass(frozen=True, slots=True)
class Linear:
    """See :func:`linear`. :func:`constant` uses it with a step of 0 and a start."""

    step: float
    cap: float
    jitter: bool
    start: float = 0.0
    source: random.Random | None = None

    def __str__(self) -> str:
        if not self.step:
            return f"{min(self.cap, self.start):g} s{_jittered(self.jitter)}"
        start = f"{self.start:g} s + " if self.start else ""
        delay = f"{start}{self.step:g} s * attempt, at most {self.cap:g} s"
        return f"{delay}{_jittered(self.jitter)}"

    def __call__(self, exception: BaseException, task_result: Any) -> float:
        delay = min(self.cap, self.start + self.step * _attempt(task_result))
        return _spread(delay, self.source) if self.jitter else delay


@dataclass(frozen=True, slots=True)
class Delays:
    """A list of delays in seconds, one for each attempt. The last one repeats."""

    seconds: tuple[float, ...]

    def __str__(self) -> str:
        delays = ", ".join(f"{one:g}" for one in self.seconds)
        return f"{delays} s" if len(self.seconds) == 1 else f"{delays} s; the last one repeats"

    def __call__(self, exception: BaseException, task_result: Any) -> float:
        return self.seconds[min(_attempt(task_result), len(self.seconds)) - 1]


def exponential(
    base: float = 2,
    cap: Seconds = 600,
    jitter: bool = True,
    *,
    source: random.Random | None = None,
) -> Backoff:
    """Return a backoff of ``base ** attempt`` seconds, at most ``cap``: 2, 4, 8, ... 600.

    Args:
        base: at least 1.
        cap: seconds or a timedelta.
        jitter: pick a random moment in the second half of the delay, so that jobs that failed
            together are not retried together.
        source: the random generator; the same seed gives the same delays.

    Raises:
        InvalidTaskOption: a value is not a number, or is too small.
    """
    if not _is_number(base) or not base >= 1 or math.isinf(base):
        raise InvalidTaskOption(
            f"exponential(base={base!r}): write a number of at least 1, as in base=2."
        )
    return Exponential(float(base), _seconds(cap, "exponential(cap=...)"), jitter, source)


def linear(
    step: Seconds,
    cap: Seconds = 600,
    jitter: bool = False,
    *,
    source: random.Random | None = None,
) -> Backoff:
    """Return a backoff of ``step * attempt``, at most ``cap``: ``linear(10)`` gives 10, 20, ... 600
    seconds.

    Args and Raises are those of :func:`exponential`; ``step`` is in seconds or a timedelta.
    """
    step_seconds, cap_seconds = _seconds(step, "linear(step=...)"), _seconds(cap, "linear(cap=...)")
    return Linear(step_seconds, cap_seconds, jitter, source=source)


def constant(
    seconds: Seconds, jitter: bool = False, *, source: random.Random | None = None
) -> Backoff:
    """Return a backoff with the same delay before every attempt.

    Args and Raises are those of :func:`exponential`.
    """
    delay = _seconds(seconds, "constant(seconds=...)")
    return Linear(0.0, delay, jitter, start=delay, source=source)


def as_backoff(value: Any) -> Backoff:
    """Return the callable that stands for a value of the option ``backoff``.

    Args:
        value: a callable, which is returned as it is; a delay, as seconds or a timedelta; a list of
            delays; or None for the default: exponential, from 2 seconds to 10 minutes.

    Raises:
        InvalidTaskOption: the value is none of these.
    """
    if value is None:
        return DEFAULT
    if callable(value):
        return value  # type: ignore[no-any-return] # what it takes shows when it is called
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        if not value:
            raise InvalidTaskOption(
                "backoff=[]: name at least one delay, as in backoff=[1, 10, 60]."
            )
        return Delays(tuple(_seconds(delay, "backoff") for delay in value))
    return constant(_seconds(value, "backoff"))


def _attempt(task_result: Any) -> int:
    return max(1, int(task_result.attempts))


def _jittered(jitter: bool) -> str:
    return ", with jitter" if jitter else ""


def _spread(delay: float, source: random.Random | None) -> float:
    """Return a random delay in the second half of ``delay``. Forked processes draw different
    values."""
    draw = random.random() if source is None else source.random()  # noqa: S311 - nothing secret
    return delay * (0.5 + draw / 2)


def _seconds(value: Any, where: str) -> float:
    seconds = number_of_seconds(value)
    if seconds is None or not 0 <= seconds < math.inf:
        raise InvalidTaskOption(
            f"{where}: {value!r} is not a delay. Write seconds (0 or more) or a timedelta."
        )
    return float(seconds)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


DEFAULT = exponential()
