"""Decide which due ticks of a schedule fire and which are missed. Pure functions."""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from .cron import SECOND, OnceRule, Rule

MOST_COUNTED = 1000
"""Maximum count of missed ticks."""
MOST_AT_ONCE = 25
"""Maximum number of ticks of one schedule that fire in one transaction."""
PROMPT_US = 5_000_000
"""With jitter, a tick that is late by no more than this has been delayed by its jitter, not by an
outage."""
MOST_EARLIER = 300
"""Maximum number of earlier ticks that may have delayed one."""
LONGEST_JITTER_TICKS = 1000
"""Maximum jitter, in ticks of the rule. Of as many ticks, one of the newest ``MOST_EARLIER`` is
practically always the one that is due last."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Course:
    """A schedule's rule with its bounds, in microseconds since 1970."""

    schedule_id: UUID
    rule: Rule
    start_us: int | None = None
    end_us: int | None = None
    jitter_us: int = 0

    def first(self, now_us: int) -> int | None:
        """Return the first moment of a schedule that starts now. For a one-time schedule this
        may be a moment in the past."""
        if isinstance(self.rule, OnceRule):
            return self._bounded(as_us(self.rule.at))
        since = now_us if self.start_us is None else max(now_us, self.start_us - 1)
        return self.after(since)

    def after(self, moment_us: int) -> int | None:
        """Return the next moment, or None if the schedule is over."""
        found = self.rule.next_after(as_moment(moment_us))
        return None if found is None else self._bounded(as_us(found))

    def nearest(self, moment_us: int) -> int:
        """Return the moment that is nearest to this one, or this one if it is a moment of the
        rule, or if none follows."""
        following = self.after(moment_us - 1)
        if following is None or following == moment_us:
            return moment_us
        before = self.rule.newest_until(as_moment(moment_us))
        if before is None or (self.start_us is not None and as_us(before) < self.start_us):
            return following
        is_closer = moment_us - as_us(before) < following - moment_us
        return as_us(before) if is_closer else following

    def newest(self, since_us: int, now_us: int) -> int:
        """Return the last moment that is due at ``now_us``. ``since_us`` is an earlier moment that
        is due."""
        sure = self.rule.newest_until(as_moment(now_us - self.jitter_us))
        newest = since_us if sure is None else max(since_us, self._not_over(as_us(sure)))
        while (following := self.after(newest)) is not None and self.due(following) <= now_us:
            newest = following
        return newest

    def due(self, moment_us: int) -> int:
        """Return when the tick of this moment fires, jitter included. Every cluster gets the same
        value."""
        if not self.jitter_us:
            return moment_us
        text = f"{self.schedule_id} {moment_us}".encode()
        chance = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")
        return moment_us + chance % (self.jitter_us + 1)

    def fires_since(self, moment_us: int, since_us: int) -> bool:
        """Return whether the tick of this moment fires at ``since_us`` or later if nothing fails.

        It fires when it is due, but not before earlier ticks. ``MOST_EARLIER`` of them are checked.
        """
        first_us = max(moment_us - self.jitter_us, self.start_us or moment_us - self.jitter_us)
        for _ in range(MOST_EARLIER):
            if self.due(moment_us) >= since_us:
                return True
            earlier = self.rule.newest_until(as_moment(moment_us - 1))
            if earlier is None or as_us(earlier) < first_us:
                return False
            moment_us = as_us(earlier)
        return False

    def _bounded(self, moment_us: int) -> int | None:
        return None if self.end_us is not None and moment_us > self.end_us else moment_us

    def _not_over(self, moment_us: int) -> int:
        if self.end_us is None or moment_us <= self.end_us:
            return moment_us
        last = self.rule.newest_until(as_moment(self.end_us))
        return self.end_us if last is None else as_us(last)


def longest_jitter_seconds(rule: Rule) -> float:
    """Return the longest jitter with which every tick of a rule fires."""
    return LONGEST_JITTER_TICKS * rule.interval_seconds


@dataclass(frozen=True, slots=True)
class Missed:
    """Ticks that do not fire."""

    first_us: int
    count: int
    """Number of ticks; ``MOST_COUNTED`` stands for that many or more."""


@dataclass(frozen=True, slots=True)
class TickPlan:
    """The decision about a schedule with a due tick: the moments to fire, the next moment, and the
    missed ticks."""

    fire_us: tuple[int, ...]
    next_us: int | None
    missed: Missed | None = None


@dataclass(frozen=True, slots=True)
class Misfire:
    """Policy for ticks that were not fired in time."""

    policy: str
    cap: int
    grace_us: int


def plan(course: Course, misfire: Misfire, moment_us: int, now_us: int) -> TickPlan:
    """Decide which due moments of a schedule fire now, given the first due moment."""
    following = course.after(moment_us)
    is_alone = following is None or course.due(following) > now_us
    newest = moment_us if is_alone else course.newest(moment_us, now_us)
    is_skipped = misfire.policy == "skip"
    if course.jitter_us and not is_alone:
        prompt_us = min(PROMPT_US, misfire.grace_us) if is_skipped else PROMPT_US
        if course.fires_since(moment_us, now_us - prompt_us):
            now = tuple(_from(course, MOST_AT_ONCE, moment_us, newest))
            return TickPlan(now, course.after(now[-1]))
    if is_skipped and not course.fires_since(newest, now_us - misfire.grace_us):
        count = min(_count(course, moment_us, newest) + 1, MOST_COUNTED)
        missed = Missed(moment_us, count)
        return TickPlan((), following if is_alone else course.after(newest), missed)
    if is_alone:
        return TickPlan((moment_us,), following)
    if misfire.policy == "all":
        return _all(course, misfire.cap, moment_us, newest)
    missed = Missed(moment_us, _count(course, moment_us, newest))
    return TickPlan((newest,), course.after(newest), missed)


def _all(course: Course, cap: int, moment_us: int, newest_us: int) -> TickPlan:
    """Plan to fire the newest ``cap`` moments: the first MOST_AT_ONCE of them now, the other ones
    in later calls."""
    kept = _from(course, cap + 1, moment_us, newest_us)
    missed = None
    if len(kept) > cap:
        kept = _last(course, cap, moment_us, newest_us)
        missed = Missed(moment_us, _count(course, moment_us, kept[0]))
    now = tuple(kept[:MOST_AT_ONCE])
    return TickPlan(now, course.after(now[-1]), missed)


def _from(course: Course, number: int, first_us: int, newest_us: int) -> list[int]:
    """Return up to ``number`` consecutive moments, from the first one at most to the newest."""
    found = [first_us]
    while len(found) < number and (following := course.after(found[-1])) is not None:
        if following > newest_us:
            break
        found.append(following)
    return found


def _last(course: Course, number: int, first_us: int, newest_us: int) -> list[int]:
    """Return the last ``number`` moments up to the newest."""
    back_us = SECOND // MICROSECOND
    while True:
        since = max(first_us - 1, newest_us - back_us)
        found: deque[int] = deque(maxlen=number)
        moment = since
        while (following := course.after(moment)) is not None and following <= newest_us:
            moment = following
            found.append(moment)
        if len(found) == number or since < first_us:
            return list(found)
        back_us *= 2


def _count(course: Course, first_us: int, end_us: int) -> int:
    """Count the moments from ``first_us`` on and before ``end_us``."""
    count, moment = 0, first_us
    while moment < end_us and count < MOST_COUNTED:
        count += 1
        following = course.after(moment)
        if following is None:
            break
        moment = following
    return count


def as_moment(instant_us: int) -> datetime:
    return EPOCH + instant_us * MICROSECOND


def as_us(moment: datetime) -> int:
    return (moment - EPOCH) // MICROSECOND
