"""Measures the processor time of each test, with all processes that it started.

The report (`--junitxml`) has it as the property `processor_seconds`; the summary of `make test`
adds it up by module.
"""

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

PROC = Path("/proc")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PROPERTY = "processor_seconds"


def used_seconds() -> float:
    """Return the processor time of this process, its descendants, and those that have ended."""
    return sum(map(_ticks_of, family(os.getpid()))) / TICKS_PER_SECOND


def family(pid: int) -> Iterator[int]:
    """Yield the process and its descendants. The kernel's list may miss one while another ends."""
    yield pid
    try:
        threads = list((PROC / str(pid) / "task").iterdir())
        children = [child for one in threads for child in (one / "children").read_text().split()]
    except OSError:  # it has just ended, or the kernel was built without this list
        return
    for child in children:
        yield from family(int(child))


def _ticks_of(pid: int) -> int:
    try:
        # The name, in brackets, may contain blanks and brackets: read on after the last one.
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return sum(map(int, fields[11:15]))  # user and system: its own, and of children that ended


_before = 0.0


def pytest_collection_finish() -> None:
    """Start to count here: the first test does not include the collection."""
    global _before
    _before = used_seconds()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the number to the last report of a test."""
    global _before
    report = yield
    if report.when == "teardown":
        now = used_seconds()
        # The kernel's list may miss a child while it changes: the next number has it again.
        report.user_properties.append((PROPERTY, f"{max(0.0, now - _before):.2f}"))
        _before = max(_before, now)
    return report
