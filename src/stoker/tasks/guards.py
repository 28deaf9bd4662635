"""Guards that users give to tasks: ``Unique``, ``Lock``, ``Limit``, ``Rate`` and ``InSequence``.

A guard applies to all jobs with the same key. A key is one of

- a format string over the names of the function's parameters, as in ``"feed:{feed_id}"``, with
  everything that ``str.format`` supports; defaults are filled in;
- a callable that receives the arguments it names as parameters and returns a str, an int, a
  UUID, or a tuple of values that can be arguments; None = no guard for this job;
- None: for ``Unique`` and ``Lock`` the task and all its arguments, for ``Limit`` and ``Rate``
  the task.

Tasks on one database that use the same key for the same guard share it. A key of ``Unique`` belongs
to one task, unless its scope is "global".
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from inspect import Parameter
from string import Formatter
from typing import Any, Literal, NamedTuple, get_args
from uuid import UUID

from stoker.exceptions import InvalidTaskOption, as_seconds
from stoker.values.durations import is_whole, number_of_seconds

from .backoff import Seconds

Key = str | Callable[..., str | int | UUID | tuple[Any, ...] | None]
Weight = int | Callable[..., int]
Scope = Literal["task", "global"]
Until = Literal["finished", "started"]
OnConflict = Literal["keep", "replace", "postpone", "after", "raise"]
OnBusy = Literal["wait", "skip", "retry"]
AfterFailure = Literal["go_on", "halt"]

MOST = 1_000_000_000
"""Upper bound of places, starts and weights."""
LONGEST_SECONDS = 100 * 365 * 86400.0
LONGEST_PERIOD_SECONDS = 366 * 86400.0
RETRY_DELAY = 10
"""Default of ``retry_delay`` in seconds. Another value means that the user has set it."""


@dataclass(frozen=True, slots=True)
class Unique:
    """Allow only one job with the same key.

    Args:
        key: a text such as "feed:{feed_id}", or a callable; None = the task and all its arguments.
        scope: "task": other tasks may use the same key; "global": one job across all tasks that
            use this key with this scope.
        until: when a job releases its key: when it has "finished", retries included, or when it
            has "started", after which another may be enqueued and may run beside it.
        within: seconds or a timedelta: the key also stays taken for this long after the enqueue,
            even if the job has finished. Only with "keep" and "raise".
        on_conflict: what an enqueue does if the key is taken. "keep": leave the existing job
            unchanged. "after": the same if the job waits; if it runs, enqueue one more after it.
            "replace": give the waiting job the new arguments; if the job runs, enqueue one more
            after it. "postpone": the same, and start the job ``delay`` after the last enqueue.
            "raise": raise DuplicateJob.
        delay: seconds or a timedelta; required for "postpone".
        longest_wait: for "postpone": start at the latest this long after the first enqueue.
    """

    key: Key | None = None
    _: KW_ONLY
    scope: Scope = "task"
    until: Until = "finished"
    within: Seconds | None = None
    on_conflict: OnConflict = "keep"
    delay: Seconds | None = None
    longest_wait: Seconds | None = None

    def __post_init__(self) -> None:
        check_key("Unique", self.key)
        _check_choice("Unique", "scope", self.scope, Scope)
        _check_choice("Unique", "until", self.until, Until)
        _check_choice("Unique", "on_conflict", self.on_conflict, OnConflict)
        for name in ("within", "delay", "longest_wait"):
            if getattr(self, name) is not None:
                _check_seconds("Unique", name, getattr(self, name))
        self._check_postponement()
        if self.within is not None and self.on_conflict not in ("keep", "raise"):
            raise InvalidTaskOption(
                f"Unique(within=..., on_conflict={self.on_conflict!r}): with within, the job may "
                'have finished and cannot be changed, so write on_conflict="keep" or "raise".'
            )
        if self.until == "started" and self.on_conflict == "after":
            raise InvalidTaskOption(
                'Unique(until="started", on_conflict="after"): a running job has already released '
                'its key, so leave until out, or write on_conflict="keep".'
            )

    def _check_postponement(self) -> None:
        if self.on_conflict != "postpone":
            if self.delay is not None or self.longest_wait is not None:
                name = "longest_wait" if self.delay is None else "delay"
                raise InvalidTaskOption(
                    f'Unique({name}=...) has an effect only with on_conflict="postpone": add that.'
                )
        elif self.delay is None:
            raise InvalidTaskOption(
                'Unique(on_conflict="postpone"): write how long after the last enqueue the job '
                "starts, as in delay=30."
            )
        elif as_seconds(self.longest_wait or self.delay) < as_seconds(self.delay):
            raise InvalidTaskOption(
                f"Unique(delay={self.delay!r}, longest_wait={self.longest_wait!r}): write a "
                "longest_wait that is not shorter than delay."
            )


@dataclass(frozen=True, slots=True)
class Lock:
    """Run one job with the same key at a time.

    Args:
        key: a text such as "feed:{feed_id}", or a callable; None = the task and all its
            arguments, so that the same call never runs twice at once.
        on_busy: what happens to a job that is due while the lock is taken. "wait": it is blocked
            until the lock is free; blocked jobs run in the order of their enqueues. "skip": it
            ends as cancelled. "retry": it is retried after ``retry_delay``.
        retry_delay: seconds or a timedelta; for "retry".
    """

    key: Key | None = None
    _: KW_ONLY
    on_busy: OnBusy = "wait"
    retry_delay: Seconds = 10

    def __post_init__(self) -> None:
        check_key("Lock", self.key)
        _check_busy("Lock", self.on_busy, self.retry_delay)


@dataclass(frozen=True, slots=True)
class Limit:
    """Run at most ``n`` jobs with the same key at a time.

    Args:
        n: at least 1. If tasks or releases disagree, the value of the newest job counts.
        key: a text such as "feed:{feed_id}", or a callable; None = the task.
        on_busy, retry_delay: as for Lock.
    """

    n: int
    key: Key | None = None
    _: KW_ONLY
    on_busy: OnBusy = "wait"
    retry_delay: Seconds = 10

    def __post_init__(self) -> None:
        _check_whole("Limit", "n", self.n)
        check_key("Limit", self.key)
        _check_busy("Limit", self.on_busy, self.retry_delay)


@dataclass(frozen=True, slots=True)
class Rate:
    """Limit how often jobs with the same key start within a period.

    Args:
        rate: starts per period: "10/s", "100/m", "5000/h", "1000/d" or "100/30s".
        key: a text such as "feed:{feed_id}", or a callable; None = the task.
            Rates of different periods do not share a key, so a task may have
            ``(Rate("10/s", "api"), Rate("1000/h", "api"))``.
        burst: None = no period ever sees more starts than ``rate`` allows. A number: starts are
            spread over the period, and up to ``burst`` may come at once after a quiet time (a
            token bucket).
        weight: how many starts a job counts as, or a callable of the arguments that returns it.
            At most ``burst``, or the starts of a period.
    """

    rate: str
    key: Key | None = None
    _: KW_ONLY
    burst: int | None = None
    weight: Weight = 1

    def __post_init__(self) -> None:
        _check_rate(self.rate)
        check_key("Rate", self.key)
        if self.burst is not None:
            _check_whole("Rate", "burst", self.burst)
        if not callable(self.weight):
            self.check_weight(self.weight)

    def check_weight(self, weight: Any) -> None:
        """Raise InvalidTaskOption if a job of this weight could never start."""
        _check_whole("Rate", "weight", weight)
        if weight > self.most:
            raise InvalidTaskOption(
                f"Rate({self.rate!r}, weight={weight}): such a job could never start, so give it a "
                f"weight of {self.most} at most, or write a higher rate or burst."
            )

    @property
    def starts(self) -> int:
        """Number of starts per period."""
        return _per_period(self.rate)[0]

    @property
    def period_seconds(self) -> float:
        return _per_period(self.rate)[1]

    @property
    def window(self) -> tuple[float, bool]:
        """Period in seconds, and whether the rate is a token bucket. Rates must have the same
        values to share a key."""
        return self.period_seconds, self.burst is None

    @property
    def most(self) -> int:
        """Maximum weight of a job."""
        return self.starts if self.burst is None else self.burst


@dataclass(frozen=True, slots=True)
class InSequence:
    """Run jobs with the same key one after another, in the order of their enqueues.

    A failed attempt is retried before the next job starts.

    Args:
        key: a text such as "feed:{feed_id}", or a callable; required.
        after_failure: "go_on": the next job starts after a job has failed for good. "halt": later
            jobs wait until its dead letter is requeued or discarded.
    """

    key: Key
    _: KW_ONLY
    after_failure: AfterFailure = "go_on"

    def __post_init__(self) -> None:
        if self.key is None:
            raise InvalidTaskOption(
                "InSequence(None): write the key under which the jobs are in sequence, as in "
                'InSequence("account:{account_id}").'
            )
        check_key("InSequence", self.key)
        _check_choice("InSequence", "after_failure", self.after_failure, AfterFailure)


Guard = Unique | Lock | Limit | Rate | InSequence

UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_RATE = re.compile(r"(\d{1,10})/(\d{0,9})([smhd])", re.ASCII)


def _check_rate(rate: Any) -> None:
    if isinstance(rate, str) and _RATE.fullmatch(rate):
        starts, seconds = _per_period(rate)
        if 1 <= starts <= MOST and 0 < seconds <= LONGEST_PERIOD_SECONDS:
            return
    raise InvalidTaskOption(
        f"Rate({rate!r}): write how many starts in which period, as in "
        '"100/m", or "100/30s"; the units are s, m, h and d, and a period has at most 366 days.'
    )


@lru_cache(maxsize=1024)
def _per_period(rate: str) -> tuple[int, float]:
    """Return the number of starts and the period in seconds."""
    match = _RATE.fullmatch(rate)
    assert match is not None
    return int(match[1]), float(match[2] or 1) * UNIT_SECONDS[match[3]]


def _check_choice(owner: str, name: str, value: Any, choices: Any) -> None:
    if value not in get_args(choices):
        known = " or ".join(f'"{choice}"' for choice in get_args(choices))
        raise InvalidTaskOption(f"{owner}({name}={value!r}): write {known}.")


def _check_whole(owner: str, name: str, value: Any) -> None:
    if not is_whole(value) or not 1 <= value <= MOST:
        raise InvalidTaskOption(
            f"{owner}({name}={value!r}): write a whole number, at least 1 and at most {MOST}."
        )


def _check_seconds(owner: str, name: str, value: Any) -> None:
    seconds = number_of_seconds(value)
    if seconds is None or not 0 < seconds <= LONGEST_SECONDS:
        raise InvalidTaskOption(
            f"{owner}({name}={value!r}): write a number of seconds above 0, or a timedelta."
        )


def _check_busy(owner: str, on_busy: Any, retry_delay: Any) -> None:
    _check_choice(owner, "on_busy", on_busy, OnBusy)
    _check_seconds(owner, "retry_delay", retry_delay)
    if on_busy != "retry" and retry_delay != RETRY_DELAY:
        raise InvalidTaskOption(
            f'{owner}(retry_delay={retry_delay!r}) has an effect only with on_busy="retry": add '
            "that."
        )


def check_key(owner: str, key: Any) -> None:
    """Raise InvalidTaskOption unless the key is a format string, a callable or None."""
    if key is None or callable(key):
        return
    problem = "" if isinstance(key, str) else "it is not a text"
    if key == "":
        problem = "it is empty"
    try:
        names_in(key if not problem else "")
    except ValueError as error:
        problem = str(error)
    if problem:
        raise InvalidTaskOption(
            f'{owner}(key={key!r}): {problem}. Write a text such as "feed:{{feed_id}}", with '
            "literal braces doubled, or a callable of the arguments."
        )


@lru_cache(maxsize=1024)
def names_in(template: str) -> frozenset[str]:
    """Return the parameter names in a format string, without attributes and indexes.

    Raises:
        ValueError: the text is not a format string.
    """
    names: set[str] = set()
    for _, field, spec, conversion in Formatter().parse(template):
        if field is None:
            continue
        name = re.split(r"[.\[]", field, maxsplit=1)[0]
        if not name.isidentifier():
            raise ValueError(f"{{{field}}} does not begin with the name of a parameter")
        if conversion not in (None, "s", "r", "a"):
            raise ValueError(f"there is no conversion !{conversion}")
        names |= {name, *names_in(spec or "")}
    return frozenset(names)


@lru_cache(maxsize=1024)
def signature_of_call(
    function: Callable[..., Any], takes_context: bool
) -> inspect.Signature | None:
    """Return the parameters that ``enqueue`` takes: the function's without ``context``.

    Returns None if the function has no readable signature.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    if not takes_context:
        return signature
    return signature.replace(parameters=tuple(signature.parameters.values())[1:])


class ArgumentNames(NamedTuple):
    """The parameter names of a callable."""

    names: frozenset[str]
    required: frozenset[str]
    takes_rest: bool
    """Whether the callable takes ``**kwargs``."""


def wanted_by(function: Callable[..., Any]) -> ArgumentNames | None:
    """Return the parameter names of a callable, or None if it takes positional-only parameters or
    has no readable signature."""
    signature = signature_of_call(function, False)
    if signature is None:
        return None
    named = []
    for parameter in signature.parameters.values():
        if parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.POSITIONAL_ONLY):
            return None
        if parameter.kind is not Parameter.VAR_KEYWORD:
            named.append(parameter)
    return ArgumentNames(
        frozenset(parameter.name for parameter in named),
        frozenset(one.name for one in named if one.default is Parameter.empty),
        len(named) < len(signature.parameters),
    )


def refuse_strangers(task: Any, options: Iterable[str]) -> None:
    """Raise InvalidTaskOption if a key in these options names an unknown parameter of the task."""
    for option in options:
        guards = getattr(task, option) or ()
        for guard in guards if isinstance(guards, tuple) else (guards,):
            for part in ("key", "weight"):
                made_by = getattr(guard, part, None)
                if isinstance(made_by, str):
                    refuse_stranger(task, f"{option}: the {part} {made_by!r}", names_in(made_by))
                elif callable(made_by):
                    wanted = wanted_by(made_by)
                    required = wanted.required if wanted is not None else frozenset()
                    refuse_stranger(task, f"{option}: the callable for its {part}", required)


def refuse_stranger(task: Any, what: str, names: frozenset[str]) -> None:
    """Raise InvalidTaskOption if one of the names is not a parameter of the task's function."""
    if not names:
        return
    signature = signature_of_call(task.func, task.takes_context)
    known = () if signature is None else tuple(signature.parameters)
    for name in sorted(names - set(known)):
        advice = (
            f"write one of {', '.join(known)}" if known else "it has no parameters, so leave it out"
        )
        raise InvalidTaskOption(
            f"{what} names {name!r}, which is not a parameter of {task.module_path}: {advice}."
        )
