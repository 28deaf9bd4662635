"""The options of tasks: their checks, and their values in combination with a backend's settings."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypedDict

from django.conf import settings as django_settings
from django.utils import timezone

from stoker.compat import is_task
from stoker.conf import Settings
from stoker.exceptions import InvalidTaskOption
from stoker.values.durations import is_whole, number_of_seconds
from stoker.values.marks import refuse_far_moment

from .backoff import Backoff, Seconds, as_backoff
from .dead_letters import DeadLetters
from .guards import InSequence, Limit, Lock, Rate, Unique, names_in
from .schedules import Scheduled
from .signatures import Signature

ErrorClasses = type[BaseException] | tuple[type[BaseException], ...]
BackoffOption = Seconds | Sequence[Seconds] | Backoff
Check = Callable[[str, Any], Any]


class _Shared(TypedDict, total=False):
    """Options that ``@task(...)`` and ``using(...)`` have in common."""

    max_attempts: int | None
    max_crashes: int | None
    timeout: Seconds | None
    unique: Unique | None
    lock: Lock | None
    limit: Limit | tuple[Limit, ...] | None
    rate: Rate | tuple[Rate, ...] | None
    sequence: str | InSequence | None
    on_success: Any
    on_failure: Any
    on_finish: Any


class Options(_Shared, total=False):
    """Options of ``@task(...)`` beyond Django's own. The fields of Task describe them."""

    backoff: BackoffOption | None
    retry_on: ErrorClasses
    give_up_on: ErrorClasses
    expires: Seconds | None
    atomic: bool
    at_most_once: bool
    schedule: Scheduled | Sequence[Scheduled]
    dead_letters: DeadLetters | None
    on_dead_letter: Callable[[Any], object] | None
    exposed: bool | str
    describe: str | None
    redact: Sequence[str]


class Changes(_Shared, total=False):
    """Options of ``using(...)``. They are stored in the job's package. The other options are read
    from the task after a failed attempt, so only ``@task`` accepts them."""

    priority: int | None
    queue_name: str | None
    backend: str | None
    run_after: datetime | Seconds | None
    expires: datetime | Seconds | None


OPTIONS = tuple(Options.__annotations__)
CHANGES = tuple(Changes.__annotations__)
EXPOSED_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")
GUARDS = ("unique", "lock", "limit", "rate", "sequence")
"""The options that are guards."""


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """The effective options of a task. Options that the task does not set come from the backend's
    settings."""

    max_attempts: int
    max_crashes: int
    backoff: Backoff
    timeout_seconds: float | None
    retry_on: tuple[type[BaseException], ...]
    """The job is retried only after these errors. Empty: after every error."""
    give_up_on: tuple[type[BaseException], ...]
    expires_seconds: float | None
    """Seconds after the enqueue. None: no limit, or a fixed moment (see ``expires_at``)."""
    may_expire: bool
    is_guarded: bool


def options_of(task: Any, settings: Settings) -> TaskOptions:
    """Return the effective options of a task of Stoker or of Django."""
    max_attempts = (
        1 if getattr(task, "at_most_once", False) else getattr(task, "max_attempts", None)
    )
    max_crashes = getattr(task, "max_crashes", None)
    backoff = getattr(task, "backoff", None)
    timeout = getattr(task, "timeout", None)
    expires = getattr(task, "expires", None)
    return TaskOptions(
        max_attempts=settings.max_attempts if max_attempts is None else max_attempts,
        max_crashes=settings.max_crashes if max_crashes is None else max_crashes,
        backoff=as_backoff(settings.backoff if backoff is None else backoff),
        timeout_seconds=settings.timeout_seconds if timeout is None else _limit_seconds(timeout),
        retry_on=error_classes("retry_on", getattr(task, "retry_on", None) or ()),
        give_up_on=error_classes("give_up_on", getattr(task, "give_up_on", None) or ()),
        expires_seconds=None
        if expires is None or isinstance(expires, datetime)
        else float(expires),
        may_expire=expires is not None,
        is_guarded=is_guarded(task),
    )


def expires_at(task: Any, enqueued_at: float) -> float | None:
    """Return when a job that was enqueued at ``enqueued_at`` expires, in seconds since 1970; None =
    never."""
    expires = getattr(task, "expires", None)
    if expires is None:
        return None
    return as_timestamp(expires) if isinstance(expires, datetime) else enqueued_at + float(expires)


def as_timestamp(moment: datetime) -> float:
    """Return a moment in seconds since 1970. A naive moment is in Django's current time zone.

    Raises:
        InvalidTaskOption: some database or broker cannot store the moment.
    """
    try:
        refuse_far_moment(moment)
    except ValueError as error:
        raise InvalidTaskOption(f"{moment!r}: {error}.") from None
    aware = moment if timezone.is_aware(moment) else timezone.make_aware(moment)
    return aware.timestamp()


def is_guarded(task: Any) -> bool:
    """Return whether a task of Stoker or of Django has a guard."""
    try:
        return bool(task.unique or task.lock or task.limit or task.rate or task.sequence)
    except AttributeError:  # a plain one
        return False


def not_before(run_after: Any) -> dict[str, Any]:
    """Return the fields of Task that store the earliest start. A delay of 0 or less means now."""
    if isinstance(run_after, datetime):
        return {"run_after": run_after, "run_after_seconds": None}
    seconds = number_of_seconds(run_after)
    if seconds is None or not abs(seconds) < LONGEST_DELAY_SECONDS:
        raise InvalidTaskOption(
            f"run_after={run_after!r}: write a datetime, or a delay in seconds or as a timedelta."
        )
    return {"run_after": None, "run_after_seconds": float(seconds) if seconds > 0 else None}


def option(default: Any, check: Check) -> Any:
    """Declare a field of Task with a check. The check returns the value to store."""
    return field(default=default, metadata={"check": check})


def yes_or_no(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidTaskOption(f"{name}={value!r}: write True or False.")
    return value


def exposure(name: str, value: Any) -> bool | str:
    """Check the option ``exposed``: a boolean, or the public name of the task."""
    if isinstance(value, bool) or (isinstance(value, str) and EXPOSED_NAME.fullmatch(value)):
        return value
    raise InvalidTaskOption(
        f"{name}={value!r}: write True, False, or a name of up to 255 letters, digits, dots, "
        "underscores and hyphens."
    )


def whole(minimum: int, maximum: int) -> Check:
    def check(name: str, value: Any) -> int:
        if not is_whole(value) or not minimum <= value <= maximum:
            raise InvalidTaskOption(
                f"{name}={value!r}: write a whole number between {minimum} and {maximum}."
            )
        return value

    return check


LONGEST_SECONDS = 1_000_000_000
"""Timers and the counters of nanoseconds cannot hold much longer times."""


def positive_seconds(name: str, value: Any) -> float:
    """Check a number of seconds above 0, and return it. Infinity is allowed and means no limit."""
    seconds = number_of_seconds(value)
    if seconds is None or not seconds > 0:
        raise InvalidTaskOption(
            f"{name}={value!r}: write a number of seconds above 0, or a timedelta."
        )
    if LONGEST_SECONDS < seconds < math.inf:
        raise InvalidTaskOption(
            f"{name}={value!r}: write at most {LONGEST_SECONDS:,} seconds (31 years)."
        )
    return float(seconds)


def expiry(name: str, value: Any) -> float | datetime:
    if isinstance(value, datetime):
        if django_settings.USE_TZ and timezone.is_naive(value):
            raise InvalidTaskOption(
                f"{name}={value!r}: write an aware datetime, as in timezone.now() + timedelta(...)."
            )
        return value
    seconds = positive_seconds(name, value)
    if math.isinf(seconds):
        raise InvalidTaskOption(f"{name}={value!r}: leave it out for a job that never expires.")
    return seconds


def backoff(name: str, value: Any) -> Backoff:
    return as_backoff(value)


def error_classes(name: str, value: Any) -> tuple[type[BaseException], ...]:
    """Check one exception class or a tuple of them, as in ``except``."""
    classes = value if isinstance(value, tuple) else (value,)
    for one in classes:
        if not isinstance(one, type) or not issubclass(one, BaseException):
            raise InvalidTaskOption(
                f"{name}={value!r}: write an exception class or a tuple of them, "
                f"as in {name}=(ConnectionError, TimeoutError)."
            )
    return classes


def description(name: str, value: Any) -> str:
    """Check the option ``describe``: a format string."""
    try:
        names_in(value)
    except (ValueError, TypeError, AttributeError):
        pass
    else:
        return str(value)
    raise InvalidTaskOption(
        f'{name}={value!r}: write a text such as "order {{order_id}}", with literal braces doubled.'
    )


def redaction(name: str, value: Any) -> tuple[str, ...]:
    """Check the option ``redact``: names of parameters and keys."""
    names = tuple(value) if isinstance(value, list | tuple | set | frozenset) else ()
    if not names or not all(isinstance(one, str) and one for one in names):
        raise InvalidTaskOption(f'{name}={value!r}: write a list of names, as in ["api_key"].')
    return names


def one_policy(name: str, value: Any) -> DeadLetters:
    if not isinstance(value, DeadLetters):
        raise InvalidTaskOption(f'{name}={value!r}: write {name}=DeadLetters(requeue_after="1h").')
    return value


def function(name: str, value: Any) -> Callable[..., object]:
    if not callable(value):
        raise InvalidTaskOption(f"{name}={value!r}: write a function of one argument.")
    return value  # type: ignore[no-any-return] # asked


def hook(name: str, value: Any) -> Any:
    """Check a hook: a task or a signature."""
    if not isinstance(value, Signature) and not is_task(value):
        raise InvalidTaskOption(
            f"{name}={value!r}: write a task, or a call of one as in {name}=tell.s(7)."
        )
    return value


WORDS_OF_OTHERS = {
    "max_retries": "max_attempts",
    "retries": "max_attempts",
    "queue": "queue_name",
    "countdown": "run_after",
    "eta": "run_after",
    "delay": "run_after",
    "time_limit": "timeout",
    "soft_time_limit": "timeout",
    "retry_backoff": "backoff",
    "autoretry_for": "retry_on",
    "rate_limit": "rate",
    "concurrency": "limit",
    "max_concurrency": "limit",
    "unique_for": "unique",
    "dedupe": "unique",
    "cron": "schedule",
    "run_every": "schedule",
}
"""Name of an option in another task queue -> Stoker's name, for error messages."""


def refuse_unknown(given: Iterable[str], known: Sequence[str], where: str) -> None:
    """Raise InvalidTaskOption for the first unknown option, and suggest the closest known one."""
    for name in given:
        if name not in known and name in OPTIONS:
            raise InvalidTaskOption(f"{where} does not take {name!r}: it belongs in @task(...).")
        if name not in known:
            near = difflib.get_close_matches(name, [*known, *WORDS_OF_OTHERS], n=1)
            near = [WORDS_OF_OTHERS.get(one, one) for one in near]
            is_known = bool(near) and near[0] in known
            advice = f"Did you mean {near[0]!r}?" if is_known else f"Known: {', '.join(known)}."
            raise InvalidTaskOption(f"{where} has no option {name!r}. {advice}")


def _limit_seconds(timeout: float | timedelta) -> float | None:
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
    return None if math.isinf(seconds) else seconds


LONGEST_DELAY_SECONDS = 100 * 365 * 86400.0
