"""The syntax of schedules: ``Cron(...)``, ``every(...)`` and ``once(...)``.

Creating a schedule does not use Django, because settings and modules of tasks create schedules.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, TypedDict, Unpack

from stoker.exceptions import InvalidSchedule
from stoker.values.cron import (
    UNITS,
    CronRule,
    IntervalRule,
    OnceRule,
    Rule,
    instant_of,
    zone_named,
)
from stoker.values.durations import duration_seconds, is_whole

MISFIRES = ("once", "skip", "all")
OVERLAPS = ("allow", "skip", "queue")
LONGEST_JITTER_SECONDS = 86_400.0
MOST_CAUGHT_UP = 1000
LONGEST_NAME = 255


class Terms(TypedDict, total=False):
    """Keyword arguments that every schedule accepts besides its rule; see ``Scheduled``."""

    tz: str | None
    name: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    start: datetime | None
    end: datetime | None
    repeats: int
    jitter: float | str | timedelta
    misfire: str
    misfire_cap: int
    grace: float | str | timedelta
    overlap: str
    moment_as: str
    queue_name: str
    priority: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled(ABC):
    """A rule with its options. Created by ``Cron(...)``, ``every(...)`` and ``once(...)``.

    Raises:
        InvalidSchedule: a value is wrong; the message names the first one.
    """

    kind: ClassVar[str]

    tz: str | None = None
    """Time zone of the wall clock, as in "Europe/Berlin". None = Django's ``TIME_ZONE``."""
    name: str = ""
    """Name of the schedule. "" = the task's name, numbered from the second schedule of a task
    on."""
    args: Sequence[Any] = field(default=(), hash=False)
    kwargs: Mapping[str, Any] = field(default_factory=dict, hash=False)
    start: datetime | None = None
    """Earliest tick. A naive moment is in the schedule's time zone."""
    end: datetime | None = None
    """Latest tick."""
    repeats: int = -1
    """Number of jobs after which the schedule ends; -1 = never."""
    jitter: float | str | timedelta = 0.0
    """Maximum random delay of each tick: seconds, "30s" or a timedelta. Every cluster computes the
    same delay. At most a day, and at most the time of 1,000 ticks."""
    misfire: str = "once"
    """How missed ticks are caught up. "once": one job for all of them, for the newest moment;
    "skip": none if the newest is older than ``grace``; "all": one job for each."""
    misfire_cap: int = 100
    """With "all": maximum number of jobs, for the newest ticks."""
    grace: float | str | timedelta = 60.0
    """With "skip": maximum age of a tick that is still fired. Also the maximum age of a ``once``
    that fires although code or settings declare it after its time."""
    overlap: str = "allow"
    """What happens if the previous tick's job has not ended. "allow": enqueue another; "skip":
    enqueue none; "queue": enqueue one when it has ended."""
    moment_as: str = ""
    """Keyword argument that receives the intended moment, an aware datetime in the schedule's time
    zone. "" = none."""
    queue_name: str = ""
    """Queue of the jobs. "" = the task's queue."""
    priority: int | None = None
    """Priority of the jobs. None = the task's priority."""

    def __post_init__(self) -> None:
        self._check_rule()
        for name, known in (("misfire", MISFIRES), ("overlap", OVERLAPS)):
            if getattr(self, name) not in known:
                words = ", ".join(map(repr, known))
                raise InvalidSchedule(f"{name}={getattr(self, name)!r}: write one of {words}.")
        for name, most in (("jitter", LONGEST_JITTER_SECONDS), ("grace", float("inf"))):
            object.__setattr__(self, name, _seconds(name, getattr(self, name), most))
        if not (is_whole(self.repeats) and (self.repeats == -1 or 0 < self.repeats < 2**31)):
            raise InvalidSchedule(
                f"repeats={self.repeats!r}: write the number of ticks, or -1 for no limit."
            )
        if not (is_whole(self.misfire_cap) and 0 < self.misfire_cap <= MOST_CAUGHT_UP):
            raise InvalidSchedule(
                f"misfire_cap={self.misfire_cap!r}: write a whole number from 1 to "
                f"{MOST_CAUGHT_UP}."
            )
        self._check_call()

    @abstractmethod
    def rule(self, default_zone: str) -> Rule:
        """Return the rule in its time zone, or in the default one."""

    def zone(self, default: str) -> str:
        return self.tz or default

    def instant(self, moment: datetime, default_zone: str) -> datetime:
        """Return the moment in UTC. A naive moment is in the schedule's time zone.

        Raises:
            InvalidSchedule: in UTC or in the schedule's time zone, the moment is outside the range
                of dates.
        """
        zone = zone_named(self.zone(default_zone))
        try:
            if moment.tzinfo is None:
                return instant_of(moment, zone)
            return moment.astimezone(zone).astimezone(UTC)
        except OverflowError:
            raise InvalidSchedule(f"{moment} is outside the range of dates.") from None

    def _check_rule(self) -> None:
        try:
            self.rule("UTC")
        except InvalidSchedule:
            raise
        except (ValueError, TypeError, OverflowError) as error:
            raise InvalidSchedule(as_sentence(error)) from None

    def _check_call(self) -> None:
        if isinstance(self.args, str | bytes) or not isinstance(self.args, Sequence):
            raise InvalidSchedule(f"args={self.args!r}: write a list of arguments.")
        kwargs: Any = self.kwargs
        if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
            raise InvalidSchedule(f"kwargs={self.kwargs!r}: write a dict of arguments by name.")
        for name in ("start", "end"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, datetime):
                raise InvalidSchedule(f"{name}={value!r}: write a datetime.")
        end = self.start and self.end and self.instant(self.end, "UTC")
        if self.start and end and end < self.instant(self.start, "UTC"):
            raise InvalidSchedule(f"end={self.end} is before start={self.start}.")
        if self.moment_as and not self.moment_as.isidentifier():
            raise InvalidSchedule(f"moment_as={self.moment_as!r}: write the name of an argument.")


@dataclass(frozen=True, slots=True)
class Cron(Scheduled):
    """A schedule with a cron rule: five fields, six with leading seconds, or a name such as
    ``@daily``.

    ::

        @task(schedule=Cron("30 2 * * 1-5", tz="Europe/Berlin"))
    """

    kind: ClassVar[str] = "cron"
    expression: str

    def rule(self, default_zone: str) -> Rule:
        expression: Any = self.expression
        if not isinstance(expression, str) or len(expression) > 255:
            raise ValueError(f"{expression!r} is not a cron rule: write up to 255 characters")
        return CronRule(self.expression, self.zone(default_zone))


@dataclass(frozen=True, slots=True, kw_only=True)
class Every(Scheduled):
    """A schedule with a fixed interval. Created by ``every``."""

    kind: ClassVar[str] = "interval"
    count: int
    unit: str
    anchor: datetime | None = None
    """One of the schedule's moments; None = midnight of Monday, 1 January 2001, on the wall
    clock."""

    def rule(self, default_zone: str) -> Rule:
        rule = IntervalRule(self.count, self.unit, self.zone(default_zone))
        if self.anchor is None:
            return rule
        if self.anchor.tzinfo is not None:
            return rule.anchored_at(self.anchor)
        return replace(rule, anchor=self.anchor)


@dataclass(frozen=True, slots=True)
class Once(Scheduled):
    """A schedule with one tick. Created by ``once``."""

    kind: ClassVar[str] = "once"
    at: datetime

    def rule(self, default_zone: str) -> Rule:
        if not isinstance(self.at, datetime):
            raise ValueError(f"once({self.at!r}): write a datetime")
        return OnceRule(self.instant(self.at, default_zone))


def every(
    *,
    anchor: datetime | None = None,
    seconds: int = 0,
    minutes: int = 0,
    hours: int = 0,
    days: int = 0,
    weeks: int = 0,
    months: int = 0,
    quarters: int = 0,
    years: int = 0,
    **terms: Unpack[Terms],
) -> Every:
    """Return a schedule with a fixed interval: ``every(minutes=5)``, ``every(months=1,
    anchor=...)``.

    Seconds, minutes and hours count elapsed time and can be added: ``every(hours=1, minutes=30)``.
    The other units tick at the anchor's time on the wall clock. In a month without the anchor's
    day, the tick is on the last day.

    Args:
        anchor: one of the moments; None = midnight of Monday, 1 January 2001, so that hours are
            full, days begin at midnight, weeks on Monday and months on the first. A naive moment
            is in the schedule's time zone.
        terms: see ``Scheduled``.

    Raises:
        InvalidSchedule: the message says which value is wrong.
    """
    given = (seconds, minutes, hours, days, weeks, months, quarters, years)
    counts = {unit: count for unit, count in zip(UNITS, given, strict=True) if count != 0}
    units = [*counts]
    if len(units) > 1 and set(units) <= {"seconds", "minutes", "hours"}:
        unit = units[0]
        weights = {"seconds": 1, "minutes": 60, "hours": 3600}
        counts = {unit: sum(count * weights[one] for one, count in counts.items()) // weights[unit]}
    if len(counts) != 1:
        raise InvalidSchedule(
            "every() takes one unit, as in every(minutes=5) or every(months=1); only seconds, "
            "minutes and hours can be combined."
        )
    ((unit, count),) = counts.items()
    return Every(count=count, unit=unit, anchor=anchor, **_words(terms))


def once(at: datetime, **terms: Unpack[Terms]) -> Once:
    """Return a schedule with one tick. A naive moment is in the schedule's time zone.

    Raises:
        InvalidSchedule: the message says which value is wrong.
    """
    return Once(at, **_words(terms))


def _words(terms: Any) -> dict[str, Any]:
    known = {one.name for one in fields(Scheduled)}
    for name in terms:
        if name not in known:
            raise InvalidSchedule(f"A schedule has no option {name!r}. Known: {', '.join(known)}.")
    return dict(terms)


def is_name(name: Any) -> bool:
    """Return whether this is a valid name of a schedule. NUL is refused because not every database
    can store it."""
    return isinstance(name, str) and 0 < len(name) <= LONGEST_NAME and "\0" not in name


def as_sentence(error: Exception) -> str:
    """Return an error's text as a sentence. It is capitalised unless it begins with user input."""
    text = str(error)
    is_ours = "=" not in text.partition(" ")[0]
    return (text[:1].upper() + text[1:] if is_ours else text) + "."


def _seconds(name: str, value: Any, most: float) -> float:
    try:
        seconds = duration_seconds(value)
    except ValueError as error:
        raise InvalidSchedule(f"{name}={value!r} {error}.") from None
    if not 0 <= seconds <= most:
        raise InvalidSchedule(f"{name}={value!r}: write between 0 and {most:g} seconds.")
    return seconds


scheduled_tasks: dict[str, Any] = {}
"""Tasks that have the option ``schedule``, by path."""


def declare(task: Any) -> None:
    """Register a task that has the option ``schedule``, so that clusters find it."""
    if task.schedule:
        scheduled_tasks.setdefault(task.module_path, task)


def schedules_of(name: str, value: Any) -> tuple[Scheduled, ...]:
    """Check the option ``schedule`` of a task: one schedule or several."""
    listed = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not all(isinstance(one, Scheduled) for one in listed):
        raise InvalidSchedule(
            f'{name}={value!r}: write Cron("0 3 * * *"), every(minutes=5), or a list of them.'
        )
    return listed


def schedules_by_name(value: Any) -> tuple[tuple[str, str, Scheduled], ...]:
    """Return the setting ``SCHEDULES`` as tuples of name, dotted path of the task and schedule.

    Raises:
        ValueError: the setting is malformed.
    """
    if not isinstance(value, Mapping):
        raise ValueError("must be a dict of names and schedules")
    found = []
    for name, one in value.items():
        is_whole = isinstance(one, Mapping) and set(one) == {"task", "schedule"}
        if not is_whole or not isinstance(one["schedule"], Scheduled):
            raise ValueError(
                f'must have for {name!r} a dict such as {{"task": "shop.tasks.report", "schedule": '
                'Cron("0 3 * * *")}'
            )
        if not is_name(name):
            raise ValueError(f"must have names of up to {LONGEST_NAME} characters")
        found.append((name, str(one["task"]), one["schedule"]))
    return tuple(found)
