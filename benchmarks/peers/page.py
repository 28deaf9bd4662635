"""The tables of a page of the documentation: `python -m benchmarks.peers.page FILE`.

FILE is what `python -m benchmarks.peers --json FILE` has written.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median

from benchmarks.peers.report import (
    ABSENT,
    ROWS,
    Measured,
    fastest_first,
    numbers,
    ratios,
    spread,
)

BY_NAME = {row.name: row for row in ROWS}
Lines = list[list[str]]


def main() -> None:
    """Print all three tables."""
    measured = json.loads(Path(sys.argv[1]).read_text())
    print("\n\n".join(_markdown(table(measured)) for table in (speed, cost, terms)))


def speed(measured: Measured) -> Lines:
    """Return the table of rates, and Stoker's rate relative to each."""
    stoker, raw = measured["bases"]
    lines = [
        [
            "",
            "jobs",
            "jobs/s",
            "ratio to SQL by hand",
            "Stoker's rate / its rate",
            "pick-up p50 / p99, ms",
            "enqueued singly/s",
            "in bulk/s",
        ]
    ]
    for name, peer in fastest_first(measured):
        lines.append(
            [
                peer["about"]["title"],
                f"{max((one['jobs'] for one in peer['rounds']), default=0):,}",
                spread(numbers(peer["rounds"], BY_NAME["drain"])),
                _middle(ratios(measured, name, raw), 3),
                ABSENT if name == stoker else spread(ratios(measured, stoker, name), 2),
                " / ".join(_of(peer, row, 1) for row in ("p50", "p99")),
                _of(peer, "enqueue_singly"),
                _of(peer, "enqueue_in_bulk"),
            ]
        )
    return lines


def cost(measured: Measured) -> Lines:
    """Return the table of costs per job."""
    names = ("commits", "wal", "aof", "dead", "memory_mb", "idle_percent")
    peers = fastest_first(measured)
    rows = [BY_NAME[name] for name in names]
    rows = [row for row in rows if any(numbers(peer["rounds"], row) for _, peer in peers)]
    lines = [["", "CPU us per job, workers + server", *(row.title for row in rows)]]
    for _, peer in peers:
        used = " + ".join(_of(peer, who) for who in ("workers_us", "servers_us"))
        found = [_of(peer, row.name, row.digits) for row in rows]
        lines.append([peer["about"]["title"], used, *found])
    return lines


def terms(measured: Measured) -> Lines:
    """Return the table of promises and settings."""
    lines = [["", "version", "delivery", "results", "at once", "settings"]]
    for _, peer in fastest_first(measured):
        about = peer["about"]
        said = [about[name] for name in ("delivery", "results", "concurrency", "settings")]
        lines.append([about["title"], about["version"] or ABSENT, *said])
    return lines


def _of(peer: Measured, row: str, digits: int = 0) -> str:
    return _middle(numbers(peer["rounds"], BY_NAME[row]), digits)


def _middle(found: list[float], digits: int) -> str:
    return f"{median(found):,.{digits}f}" if found else ABSENT


def _markdown(lines: Lines) -> str:
    head, *rest = lines
    rows = [head, ["---"] * len(head), *rest]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    main()
