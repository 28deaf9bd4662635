"""What the jobs of the benchmarks do: nothing, or tell the time."""

import time

from stoker import task


@task
def nothing(number: int) -> int:
    """Do nothing, and have a small result."""
    return number


@task
def first_line(number: int) -> int:
    """Tell when it began, on the monotonic clock, which all processes of a machine share."""
    return time.monotonic_ns()
