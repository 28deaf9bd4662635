"""The measurements as a table: medians over the rounds, with the lowest and the highest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

Side = dict[str, Any]
Numbers = list[float]


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    title: str
    of_round: Callable[[Side, int], float]
    """Return one number of one side of a round, given the number of jobs."""
    digits: int = 0


def _value(name: str) -> Callable[[Side, int], float]:
    return lambda side, jobs: float(side[name])


def _percentile(percent: int) -> Callable[[Side, int], float]:
    def of_round(side: Side, jobs: int) -> float:
        points: Numbers = quantiles(side["latencies_ms"], n=100, method="inclusive")
        return points[percent - 1]

    return of_round


def _processor_us(side: Side, jobs: int) -> float:
    used: dict[str, float] = side["processor"]
    return 1e6 * sum(used.values()) / jobs


ROWS = (
    Row("drained no-op jobs/s, 2 workers", _value("drain")),
    Row("  processor us per job, all processes", _processor_us),
    Row("enqueued jobs/s, one commit each", _value("enqueue_singly")),
    Row("enqueued jobs/s, one by one in a transaction", _value("enqueue_in_transaction")),
    Row("enqueued jobs/s, in bulk", _value("enqueue_in_bulk")),
    Row("pick-up ms on an idle cluster, p50", _percentile(50), 1),
    Row("pick-up ms on an idle cluster, p99", _percentile(99), 1),
    Row("memory of all processes, MiB (PSS)", _value("memory_mb")),
    Row("idle processor time, % of a core", _value("idle_percent"), 2),
)
TITLE_WIDTH = max(len(row.title) for row in ROWS)


def table(measured: dict[str, Any], jobs: int) -> str:
    """Return the table of one database."""
    rounds = measured["rounds"]
    lines = [
        f"{measured['database']}: {jobs:,} jobs, {len(rounds)} rounds",
        f"{'':{TITLE_WIDTH}}  {'Stoker':>24}  {'by hand':>24}  {'ratio':>6}",
    ]
    for row in ROWS:
        stoker = [row.of_round(one["stoker"], jobs) for one in rounds]
        hand = [row.of_round(one["hand"], jobs) for one in rounds]
        lines.append(
            f"{row.title:{TITLE_WIDTH}}  {_spread(stoker, row.digits):>24}  "
            f"{_spread(hand, row.digits):>24}  {_ratio(stoker, hand):>6}"
        )
    lines += [_processor_line(rounds, jobs), f"database is locked: {measured['locked']} times"]
    return "\n".join(lines)


def _spread(numbers: Numbers, digits: int) -> str:
    low, middle, high = min(numbers), median(numbers), max(numbers)
    return f"{middle:,.{digits}f} ({low:,.{digits}f}-{high:,.{digits}f})"


def _ratio(stoker: Numbers, hand: Numbers) -> str:
    """Return the median of the rounds' ratios. A disturbance of a whole round slows both sides
    down."""
    ratios = [ours / theirs for ours, theirs in zip(stoker, hand, strict=True) if theirs]
    return f"{median(ratios):.2f}" if ratios else "-"


def _processor_line(rounds: list[dict[str, Any]], jobs: int) -> str:
    """Return the processor time of each process per job."""
    names = sorted(rounds[0]["stoker"]["processor"])
    parts = []
    for name in names:
        used = median(one["stoker"]["processor"].get(name, 0.0) for one in rounds)
        parts.append(f"{name.removeprefix('stoker-')} {1e6 * used / jobs:.0f}")
    return f"processor us per job of Stoker: {', '.join(parts)}"
