"""What a tree of processes has used, those that have ended in it included."""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks.processes import family, processor_seconds

TICKS = os.sysconf("SC_CLK_TCK")


def busy_seconds(pid: int) -> float:
    """Processor seconds of a process and its descendants, ended ones included: a queue that forks
    for every job, and a server that does for every connection, use most of theirs in processes
    that are gone when one looks."""
    members = family(pid)
    return sum(processor_seconds(members).values()) + sum(_of_ended(one.pid) for one in members)


def _of_ended(pid: int) -> float:
    """Of children that have ended and were waited for, with their own."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[13]) + int(fields[14])) / TICKS
