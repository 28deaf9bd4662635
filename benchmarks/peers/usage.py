"""The resources that a tree of processes has used, including ended processes."""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks.processes import family, processor_seconds

TICKS = os.sysconf("SC_CLK_TCK")


def busy_seconds(pid: int) -> float:
    """Return the processor seconds of a process and its descendants, including ended ones: a queue
    that forks for every job, and a server that forks for every connection, use most of theirs in
    processes that have ended."""
    members = family(pid)
    return sum(processor_seconds(members).values()) + sum(_of_ended(one.pid) for one in members)


def _of_ended(pid: int) -> float:
    """Return the processor seconds of ended children that were waited for, with their own
    children."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[13]) + int(fields[14])) / TICKS
