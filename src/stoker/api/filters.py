"""The bodies and queries of requests that perform operations."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from stoker.inspect.jobs import STATES, JobFilter
from stoker.setting_values import api_settings

from .problems import CallRefused
from .shapes import Shape
from .values import Moment, Name, Strict, Why

LONGEST_PAGE = 200
PageLimit = Annotated[int, Field(ge=1, le=LONGEST_PAGE)]
Mark = Annotated[str, Field(max_length=500)]
LONGEST_THROTTLE_SECONDS = 30.0
"""Maximum time in seconds for the deliberate pauses of one call."""
LONGEST_DELAY_SECONDS = 10 * 365 * 86400
LONGEST_AGE_SECONDS = 100 * 365 * 86400


class Body(Shape):
    """The body of a request. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class ReasonBody(Body):
    """The reason for an operation."""

    because: Why = ""


NO_REASON = ReasonBody()


class Clearing(ReasonBody):
    """Which waiting jobs to cancel."""

    limit: Annotated[int, Strict, Field(ge=1, le=100_000)] = 100
    """Maximum number of jobs. It must not exceed `MAX_BULK` (1000), and a lower `MAX_BULK` is the
    default."""
    dry_run: Annotated[bool, Strict] = False
    """Only count the jobs; change nothing."""


class JobQuery(Body):
    """Filters of a page of jobs. A filter that is left out matches all."""

    q: Annotated[str, Field(max_length=200)] = ""
    """Text in an error, the task, the label or an argument (`order_id=7` for one argument), or the
    first 6 or more digits of an id. Hidden arguments are not searched."""
    state: Literal["", *STATES] = ""  # type: ignore[valid-type] # as the search has them
    task: Name = ""
    """The dotted path, such as `shop.tasks.charge`."""
    queue: Annotated[str, Field(max_length=100)] = ""
    node: Name = ""
    """The host on which the last attempt ran, or runs."""
    since: Moment | None = None
    """Earliest time of the enqueue. For jobs that have ended: earliest time of the end."""
    until: Moment | None = None
    limit: PageLimit = 50
    after: Mark | None = None
    """`next` of the previous page."""

    def wanted(self) -> JobFilter:
        """Return the filter."""
        names = ("state", "task", "queue", "node", "since", "until")
        return JobFilter(text=self.q, **{name: getattr(self, name) for name in names})


class LogQuery(Body):
    """Which lines of a job to show."""

    limit: Annotated[int, Field(ge=1, le=1000)] = 200
    after: Mark | None = None
    """`next` of the previous page."""


class LetterSelection(Body):
    """Filters for dead letters. A filter that is left out matches all."""

    task: Name = ""
    """The dotted path, such as `shop.tasks.charge`."""
    queue: Annotated[str, Field(max_length=100)] = ""
    key: Name = ""
    """The name of the unique key, or a part of it."""
    reason: Literal["", "error", "timeout", "crash", "expired", "unreadable", "unknown_task"] = ""
    fingerprint: Annotated[str, Field(max_length=64)] = ""
    """The fingerprint of the fault."""
    node: Name = ""
    """The host on which the last attempt ran."""
    failed_after: Moment | None = None
    failed_before: Moment | None = None
    text: Annotated[str, Field(max_length=200)] = ""
    """Text in the message, traceback, exception class, task or key; in lists, in an argument, too:
    `order_id=7` for one argument."""

    def given(self) -> dict[str, Any]:
        """Return the arguments for `stoker.dead_letters`."""
        names = LetterSelection.model_fields
        return {name: getattr(self, name) for name in names if getattr(self, name)}


class LetterQuery(LetterSelection):
    """Filters for dead letters in a query string."""

    state: Literal["open", "requeued", "resolved", "discarded", "unclosed", "closed", "all"] = (
        "unclosed"
    )

    def given(self) -> dict[str, Any]:
        return {**super().given(), "state": self.state}


class LetterPageQuery(LetterQuery):
    """Filters for a page of dead letters."""

    limit: PageLimit = 50
    after: Mark | None = None
    """`next` of the previous page."""


class LetterStatsQuery(LetterQuery):
    """Filters for statistics of dead letters."""

    groups: Annotated[int, Field(ge=0, le=LONGEST_PAGE)] = 10
    """Maximum number of faults."""


class Placement(Body):
    """Queue, start time and options of a requeued job."""

    queue: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    """Default: the previous queue."""
    run_after: Moment | None = None
    run_after_seconds: Annotated[float, Strict, Field(ge=0, le=LONGEST_DELAY_SECONDS)] | None = None
    current_options: Annotated[bool, Strict] = False
    """Use the options that the task has now, such as `max_attempts` and `timeout`, instead of those
    of the failed job."""

    def placement(self) -> dict[str, Any]:
        """Return the arguments for `stoker.dead_letters`."""
        run_after = moment_of(self.run_after, self.run_after_seconds)
        return {
            "to_queue": self.queue,
            "run_after": run_after,
            "current_options": self.current_options,
        }


class Requeueing(Placement, ReasonBody):
    """How to requeue one dead letter."""

    args: Annotated[list[Any], Field(max_length=1000)] | None = None
    """Arguments that replace the old ones."""
    kwargs: dict[str, Any] | None = None
    """Arguments by name that replace the old ones."""


class DiscardingMany(ReasonBody):
    """Which dead letters to change, how many, and how fast."""

    filters: LetterSelection = LetterSelection()
    all: Annotated[bool, Strict] = False
    """Required to change dead letters without a filter."""
    limit: Annotated[int, Strict, Field(ge=1, le=100_000)] = 100
    """Maximum number of dead letters. It must not exceed `MAX_BULK` (1000), and a lower `MAX_BULK`
    is the default."""
    dry_run: Annotated[bool, Strict] = False
    """Only count the dead letters; change nothing."""
    pause_seconds: Annotated[float, Strict, Field(ge=0, le=LONGEST_THROTTLE_SECONDS)] = 0.0
    """Pause in seconds between two dead letters. `limit` times the pause may be 30 seconds at
    most."""

    def selection(self) -> dict[str, Any]:
        """Return the arguments for `stoker.dead_letters`.

        Raises:
            CallRefused: `limit` is too high, the pauses would take too long, or no filter is given.
        """
        limit = limit_of(self)
        filters = self.filters.given()
        if not (filters or self.all or self.dry_run):
            raise CallRefused(422, "filters: give at least one, or all: true.")
        if limit * self.pause_seconds > LONGEST_THROTTLE_SECONDS:
            raise CallRefused(
                422,
                f"pause_seconds: {limit} dead letters with these pauses would take longer "
                f"than {LONGEST_THROTTLE_SECONDS:g} seconds; request fewer at a time.",
            )
        pace = {"limit": limit, "pause_seconds": self.pause_seconds}
        return {**filters, **pace, "dry_run": self.dry_run}


class RequeueingMany(Placement, DiscardingMany):
    """Which dead letters to requeue."""


class Purging(ReasonBody):
    """Which dead letters to delete."""

    older_than_seconds: Annotated[float, Strict, Field(ge=0, le=LONGEST_AGE_SECONDS)]
    """Minimum number of seconds since they were closed or, for open ones, since their last
    failure."""
    state: Literal["closed", "resolved", "discarded", "open", "all"] = "closed"
    limit: Annotated[int, Strict, Field(ge=1, le=100_000)] = 1000
    """Maximum number of dead letters. It must not exceed `MAX_BULK` (1000), and a lower `MAX_BULK`
    is the default."""
    dry_run: Annotated[bool, Strict] = False


def moment_of(run_after: Any, run_after_seconds: float | None) -> Any:
    """Return the start time of a job from two fields. At most one of them may be given.

    Raises:
        CallRefused: Both fields are given.
    """
    if run_after is not None and run_after_seconds is not None:
        raise CallRefused(422, "Send run_after or run_after_seconds, not both.")
    return run_after if run_after_seconds is None else run_after_seconds


def limit_of(body: Clearing | DiscardingMany | Purging) -> int:
    """Return the limit of a request, or without one the default, which is never over ``MAX_BULK``.

    Raises:
        CallRefused: the limit is higher than one call may change.
    """
    most = api_settings().max_bulk
    if "limit" not in body.model_fields_set:
        return min(body.limit, most)
    if body.limit > most:
        raise CallRefused(422, f"limit: one call changes at most {most}; call again for the rest.")
    return body.limit
