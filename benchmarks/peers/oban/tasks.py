"""The two jobs, for Oban."""

from oban import job

from benchmarks.peers import side


@job(queue="default")
def nothing(number: int) -> None:
    """See side.py."""
    side.nothing(number)


@job(queue="default")
def first_line(number: int) -> None:
    """See side.py."""
    side.first_line(number)
