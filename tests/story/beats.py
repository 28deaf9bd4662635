"""When attempts ran, read from the files that tests.app.chaos.beat writes."""

from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple


class Span(NamedTuple):
    """One execution of one attempt, on the monotonic clock."""

    began_ns: int
    ended_ns: int
    attempt: int
    pid: int


def spans(path: Path) -> dict[str, list[Span]]:
    """Return job id -> its executions, in the order of their start."""
    found: dict[str, dict[tuple[int, int], Span]] = defaultdict(dict)
    told = path.read_text() if path.exists() else ""
    for line in told[: told.rfind("\n") + 1].splitlines():  # the last line may be incomplete
        job_id, attempt, pid, began_ns, now_ns = line.split()
        span = Span(int(began_ns), int(now_ns), int(attempt), int(pid))
        found[job_id][int(began_ns), int(pid)] = span
    return {job_id: sorted(executions.values()) for job_id, executions in found.items()}


def assert_none_overlap(path: Path) -> None:
    """Assert that each execution of a job ended before the next began."""
    for job_id, executions in spans(path).items():
        for before, after in pairwise(executions):
            assert before.ended_ns < after.began_ns, f"{job_id}: {before} and {after} overlap"
