"""The two tasks, for Stoker."""

from stoker import task

from benchmarks.peers import side


@task
def nothing(number: int) -> int:
    """See side.py."""
    return side.nothing(number)


@task
def first_line(began_ns: int) -> int:
    """See side.py."""
    return side.first_line(began_ns)
