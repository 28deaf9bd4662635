"""Rate limits: compute how many jobs may start now. Pure arithmetic on the database's clock.

A job that may start gets a *permit*, and must start while the permit is valid. The state is
``[[until_us, weight], ...]``, oldest first: the weight of the permits that are valid until that
moment. Permits given close together share an entry.

::

    sliding window   an entry counts until all of it is older than the period, so that the starts
                     in any window of that length never exceed the limit
    token bucket     an entry counts in full until its moment, and is refilled from then on, so
                     that the starts in any window never exceed burst + rate * its length

If the clock was turned back or the state is unreadable, counting starts again as if the limit had
just been used up. So after a refusal the caller stores ``take(rule, state, now_us, 0)``: otherwise
counting would start again with each read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SHORTEST_MARGIN_US = 20_000
LONGEST_MARGIN_US = 1_000_000
CLOCK_US = 1_100
"""Resolution of the clock in microseconds: SQLite's clock counts milliseconds."""
ENTRIES = 64

State = list[list[int]]


@dataclass(frozen=True, slots=True)
class RateRule:
    """A number of starts per period."""

    starts: int
    period_us: int
    burst: int = 0
    """Size of the token bucket; 0 = use a sliding window."""

    @property
    def whole(self) -> int:
        """Maximum weight that can start at once if nothing has started for a long time."""
        return self.burst or self.starts if self.starts > 0 else 0


def margin_us(rule: RateRule, at_least_us: int = 0) -> int:
    """Return the validity of a permit in microseconds, at most a second.

    The validity is 1 % of the time in which the whole limit is replenished, but at least
    ``at_least_us``.
    """
    span_us = rule.period_us * rule.whole // max(1, rule.starts)
    return min(max(SHORTEST_MARGIN_US, span_us // 100, at_least_us), LONGEST_MARGIN_US)


def cost(rule: RateRule, weight: int) -> int:
    """Return the weight that a job uses. It is at most the whole limit, because otherwise the job
    could never start."""
    return max(1, min(weight, rule.whole))


def free(rule: RateRule, state: Any, now_us: int) -> int:
    """Return the weight that may start now."""
    return max(0, rule.whole - _weight(_read(rule, state, now_us)))


def take(rule: RateRule, state: Any, now_us: int, weight: int, *, at_least_us: int = 0) -> State:
    """Return the state after a permit for this weight; a weight of 0 takes no permit.

    Args:
        at_least_us: as for ``margin_us``.
    """
    entries = _read(rule, state, now_us)
    if weight <= 0:
        return entries
    good_for_us = margin_us(rule, at_least_us)
    until_us = now_us + CLOCK_US + good_for_us
    share_us = max(1, (good_for_us if rule.burst else rule.period_us) // ENTRIES)
    for entry in entries:
        if entry[0] // share_us == until_us // share_us:
            entry[:] = max(entry[0], until_us), entry[1] + cost(rule, weight)
            break
    else:
        entries.append([until_us, cost(rule, weight)])
    return sorted(entries)


def next_us(rule: RateRule, state: Any, now_us: int, weight: int = 1) -> int:
    """Return the time at which this weight may start; ``now_us`` = at once. With a limit of 0: the
    time to check again."""
    if not rule.whole:
        return now_us + rule.period_us
    entries = _read(rule, state, now_us)
    excess = _weight(entries) + cost(rule, weight) - rule.whole
    if excess <= 0:
        return now_us
    if rule.burst:
        return _refilled_at_us(rule, entries, excess)
    ends_us = now_us
    for until_us, weight_of_entry in entries:
        if excess <= 0:
            break
        excess -= weight_of_entry
        ends_us = until_us + rule.period_us + 1
    return ends_us


def latest_us(rule: RateRule, now_us: int) -> int:
    """Return the latest time that ``next_us`` can return for any state and weight."""
    return next_us(rule, None, now_us, rule.whole)


def _read(rule: RateRule, state: Any, now_us: int) -> State:
    """Return the entries that still count at ``now_us``. Moments in the far future, left by a clock
    that was turned back, are cut to the latest moment of a new permit."""
    last_us = now_us + CLOCK_US + LONGEST_MARGIN_US
    if not _is_state(state):
        return [[last_us, rule.whole]]
    entries = sorted([min(until_us, last_us), weight] for until_us, weight in state)
    if rule.burst:
        return _refill(rule, entries, now_us)
    return [entry for entry in entries if now_us <= entry[0] + rule.period_us]


def _is_state(state: Any) -> bool:
    return isinstance(state, list) and all(
        isinstance(entry, list | tuple)
        and len(entry) == 2
        and all(type(number) is int and number >= 0 for number in entry)
        for entry in state
    )


def _weight(entries: State) -> int:
    return sum(weight for _, weight in entries)


# -- the token bucket ------------------------------------------------------------------------------


def _refill(rule: RateRule, entries: State, now_us: int) -> State:
    """Replace the past entries by one, which holds the number of missing tokens and the time since
    when they are missing."""
    since_us = missing = 0
    to_come = []
    for until_us, weight in entries:
        if until_us > now_us:
            to_come.append([until_us, weight])
        else:
            since_us, missing = _started(rule, since_us, missing, until_us, weight)
    since_us, missing = _missing(rule, since_us, missing, now_us)
    return [[since_us, missing], *to_come] if missing else to_come


def _refilled_at_us(rule: RateRule, entries: State, excess: int) -> int:
    """Return the time at which ``excess`` more tokens have been refilled."""
    since_us = missing = 0
    for until_us, weight in entries:
        if excess <= missing and since_us + _time_us(rule, excess) <= until_us:
            break
        excess -= missing + weight
        since_us, missing = _started(rule, since_us, missing, until_us, weight)
        excess += missing
        if excess <= 0:  # the burst was lowered below the missing tokens
            return until_us
    return since_us + _time_us(rule, excess)


def _started(
    rule: RateRule, since_us: int, missing: int, until_us: int, weight: int
) -> tuple[int, int]:
    """Return the time since when tokens are missing after an entry, and their number."""
    since_us, missing = _missing(rule, since_us, missing, until_us)
    return since_us, min(missing + weight, rule.burst)


def _missing(rule: RateRule, since_us: int, missing: int, now_us: int) -> tuple[int, int]:
    """Return ``since_us`` and ``missing`` as of ``now_us``: the tokens that were refilled meanwhile
    are no longer missing."""
    came_back = (now_us - since_us) * rule.starts // rule.period_us
    if came_back >= missing:
        return now_us, 0
    return since_us + _time_us(rule, came_back), missing - came_back


def _time_us(rule: RateRule, tokens: int) -> int:
    return -(-tokens * rule.period_us // max(1, rule.starts))
