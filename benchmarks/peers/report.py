"""The measurements of all peers as a table: medians over the rounds, with lowest and highest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

Measured = dict[str, Any]
Numbers = list[float]

BASES = {"postgres": ("stoker", "raw"), "redis": ("stoker_redis", "raw_redis")}
"""Base -> Stoker and the hand-written loop on it, with which the others are compared."""
ABSENT = "-"


@dataclass(frozen=True)
class Row:
    """One measure."""

    name: str
    title: str
    of_round: Callable[[Measured], float | None]
    """None if a peer has no such number."""
    digits: int = 0


def _value(name: str) -> Callable[[Measured], float | None]:
    return lambda found: found.get(name)


def _percentile(percent: int) -> Callable[[Measured], float | None]:
    def of_round(found: Measured) -> float | None:
        points: Numbers = quantiles(found["latencies_ms"], n=100, method="inclusive")
        return points[percent - 1]

    return of_round


def _processor_us(who: str) -> Callable[[Measured], float | None]:
    return lambda found: 1e6 * found["processor"][who] / found["jobs"]


def _counter(name: str) -> Callable[[Measured], float | None]:
    return lambda found: found["counters"].get(name)


DRAIN = "drain"
ROWS = (
    Row(DRAIN, "drained jobs/s", _value("drain")),
    Row("workers_us", "CPU us per job, workers", _processor_us("workers")),
    Row("servers_us", "CPU us per job, server", _processor_us("servers")),
    Row("p50", "pick-up p50 ms", _percentile(50), 1),
    Row("p99", "pick-up p99 ms", _percentile(99), 1),
    Row("enqueue_singly", "enqueued singly/s", _value("enqueue_singly")),
    Row("enqueue_in_bulk", "enqueued in bulk/s", _value("enqueue_in_bulk")),
    Row("memory_mb", "memory MiB (PSS)", _value("memory_mb")),
    Row("idle_percent", "idle, % of a core", _value("idle_percent"), 1),
    Row("commits", "commits per job", _counter("commits"), 2),
    Row("wal", "WAL bytes per job", _counter("WAL bytes")),
    Row("aof", "AOF bytes per job", _counter("AOF bytes")),
    Row("dead", "dead rows left", lambda found: found["left"].get("dead rows")),
)


def numbers(rounds: list[Measured], row: Row) -> Numbers:
    """Return one measure in each round that a peer has completed."""
    found = [row.of_round(one) for one in rounds]
    return [number for number in found if number is not None]


def ratios(measured: Measured, name: str, base: str) -> Numbers:
    """Return a peer's rate relative to another's, in each round that both have completed. A
    disturbance of a whole round slows both down."""
    theirs = {one["round"]: one[DRAIN] for one in _rounds(measured, base)}
    return [
        one[DRAIN] / theirs[one["round"]]
        for one in _rounds(measured, name)
        if one["round"] in theirs
    ]


def report(measured: Measured) -> str:
    """Return the whole report as text."""
    parts = [_head(measured), _figures(measured), _costs(measured), _statements(measured)]
    missing = [f"{name}: {why.splitlines()[0]}" for name, why in measured["missing"].items()]
    if missing:
        parts.append("\n".join(["not measured:", *(f"  {line}" for line in missing)]))
    failed = [
        f"{name}, round {one['round']}: {one['failed'].splitlines()[0]}"
        for name, peer in measured["peers"].items()
        for one in peer["failures"]
    ]
    if failed:
        parts.append("\n".join(["failed:", *(f"  {line}" for line in failed)]))
    return "\n\n".join(parts)


def fastest_first(measured: Measured) -> list[tuple[str, Measured]]:
    """Return the peers in the order of a table."""
    return sorted(
        measured["peers"].items(),
        key=lambda item: -median([one[DRAIN] for one in item[1]["rounds"]] or [0.0]),
    )


def spread(found: Numbers, digits: int = 0) -> str:
    """Return the median, and in brackets the lowest and the highest value."""
    if not found:
        return ABSENT
    low, middle, high = min(found), median(found), max(found)
    return f"{middle:,.{digits}f} ({low:,.{digits}f}-{high:,.{digits}f})"


def _rounds(measured: Measured, name: str) -> list[Measured]:
    found: list[Measured] = measured["peers"].get(name, {}).get("rounds", [])
    return found


def _head(measured: Measured) -> str:
    machine = measured["machine"]
    servers = "; ".join(machine["servers"].values())
    return (
        f"{measured['date']}, {machine['cores']} cores, {machine['system']}\n{servers}\n"
        f"{measured['load']['rounds']} rounds, all peers in turn in each"
    )


def _table(lines: list[list[str]]) -> str:
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if number == 0 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _columns(measured: Measured, rows: tuple[Row, ...]) -> list[list[str]]:
    peers = fastest_first(measured)
    rows = tuple(
        row for row in rows if any(numbers(peer["rounds"], row) for _, peer in peers)
    )  # servers of different kinds count different things
    lines = [["", *(row.title for row in rows)]]
    for name, peer in peers:
        found = [spread(numbers(peer["rounds"], row), row.digits) for row in rows]
        lines.append([name, *found])
    return lines


def _figures(measured: Measured) -> str:
    lines = _columns(measured, tuple(row for row in ROWS if row.name in _FIGURES))
    stoker, raw = measured["bases"]
    lines[0][1:1] = ["jobs", "to raw", "to Stoker"]
    for line, (name, peer) in zip(lines[1:], fastest_first(measured), strict=True):
        jobs = max((one["jobs"] for one in peer["rounds"]), default=0)
        to_others = [spread(ratios(measured, name, base), 3) for base in (raw, stoker)]
        line[1:1] = [f"{jobs:,}", *to_others]
    return _table(lines)


_FIGURES = (DRAIN, "p50", "p99", "enqueue_singly", "enqueue_in_bulk")


def _costs(measured: Measured) -> str:
    return _table(_columns(measured, tuple(row for row in ROWS if row.name not in _FIGURES)))


def _statements(measured: Measured) -> str:
    lines = []
    for name, peer in measured["peers"].items():
        about = peer["about"]
        lines.append(
            f"{name}: {about['title']} {about['version']} (Python {about['python']}); "
            f"{about['settings']}; {about['concurrency']}; delivery {about['delivery']}; "
            f"results: {about['results']}"
        )
    return "\n".join(lines)
