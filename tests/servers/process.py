"""Processes of servers: families, and how to end them."""

import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

PROC = Path("/proc")


def parent_of(pid: int) -> int | None:
    """Return the parent of a process, or None if the process has ended (a zombie has ended)."""
    try:
        # The name, in brackets, may contain blanks and brackets: read on after the last one.
        state, parent = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[:2]
    except (OSError, ValueError):
        return None
    return None if state in "ZX" else int(parent)


def family_of(pid: int) -> list[int]:
    """Return a process and its descendants, the oldest first."""
    parents = {int(entry.name): parent_of(int(entry.name)) for entry in PROC.glob("[0-9]*")}
    family = [pid]
    for member in family:
        family.extend(child for child, parent in parents.items() if parent == member)
    return family


def is_running(pid: int) -> bool:
    """Return whether a process exists and has not ended."""
    return parent_of(pid) is not None


def works_in(pid: int, folder: Path) -> bool:
    """Return whether a process works in this folder: the pid may belong to another one by now."""
    try:
        return (PROC / str(pid) / "cwd").resolve().is_relative_to(folder.resolve())
    except OSError:
        return False


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to each process that still exists."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait for a condition, and return whether it became true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def kill_family(
    pid: int, first: signal.Signals = signal.SIGKILL, patience_seconds: float = 0
) -> None:
    """End a process and its descendants: send `first` to the oldest, then SIGKILL to all."""
    family = family_of(pid)
    send([pid], first)
    if patience_seconds:
        wait_until(lambda: not any(map(is_running, family)), patience_seconds)
    send(family, signal.SIGKILL)
    wait_until(lambda: not any(map(is_running, family)), 10)
