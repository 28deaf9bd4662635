"""The state of a feed's import in words. It is read from Stoker."""

from typing import NamedTuple

from stoker import JobState, TaskError, TaskResultDoesNotExist

from .models import Feed
from .tasks import import_feed

WORDS = {
    JobState.READY: "waiting",
    JobState.CLAIMED: "waiting",
    JobState.RUNNING: "importing",
    JobState.DEFERRED: "trying again",
    JobState.SUCCESSFUL: "imported",
    JobState.FAILED: "given up",
    JobState.CANCELLED: "cancelled",
}


class ImportState(NamedTuple):
    word: str
    is_over: bool = True
    attempts: int = 0
    error: str = ""
    """Error of the last failed attempt, in one line."""


def state_of(feed: Feed) -> ImportState:
    try:
        result = import_feed.get_result(feed.job_id)
    except TaskResultDoesNotExist:  # results are kept for as long as KEEP_RESULTS says
        return ImportState("imported" if feed.imported_at else "unknown")
    error = last_line(result.errors[-1]) if result.errors else ""
    return ImportState(WORDS[result.state], result.is_finished, result.attempts, error)


def last_line(error: TaskError) -> str:
    """Return the last line of a traceback, without the name of the exception's class."""
    line = error.traceback.strip().rpartition("\n")[2]
    return line.partition(": ")[2] or line or error.exception_class_path
