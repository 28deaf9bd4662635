"""What may be asked for about dead letters."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from stoker.setting_values import api_settings

from .problems import Refusal
from .shapes import Shape
from .values import Moment, Name, Strict, Why

LONGEST_PAGE = 200
LONGEST_THROTTLE_SECONDS = 30.0
"""How long one call may take on purpose."""
LONGEST_DELAY_SECONDS = 10 * 365 * 86400
LONGEST_AGE_SECONDS = 100 * 365 * 86400


class Filters(Shape):
    """Which dead letters; what is left out filters nothing."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    task: Name = ""
    """As `shop.tasks.charge`."""
    queue: Annotated[str, Field(max_length=100)] = ""
    key: Name = ""
    """The name of the unique key, or a part of it."""
    reason: Literal["", "error", "timeout", "crash", "expired", "unreadable", "unknown_task"] = ""
    fingerprint: Annotated[str, Field(max_length=64)] = ""
    """Of the fault."""
    failed_after: Moment | None = None
    failed_before: Moment | None = None
    text: Annotated[str, Field(max_length=200)] = ""
    """Somewhere in message, traceback, exception class, task or key."""

    def given(self) -> dict[str, Any]:
        """For `stoker.dead_letters`."""
        return {name: getattr(self, name) for name in Filters.model_fields if getattr(self, name)}


class Wanted(Filters):
    """Filters of a look."""

    state: Literal["open", "requeued", "resolved", "discarded", "unclosed", "closed", "all"] = (
        "unclosed"
    )

    def given(self) -> dict[str, Any]:
        return {**super().given(), "state": self.state}


class WantedPage(Wanted):
    """Filters of a page."""

    limit: Annotated[int, Field(ge=1, le=LONGEST_PAGE)] = 50
    after: Annotated[str, Field(max_length=500)] | None = None
    """`next` of the page before."""


class WantedStats(Wanted):
    """Filters of numbers."""

    groups: Annotated[int, Field(ge=0, le=LONGEST_PAGE)] = 10
    """Of how many faults."""


class Discarding(Shape):
    """Why."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    because: Why = ""


class Requeueing(Discarding):
    """How one is to be sent again."""

    args: Annotated[list[Any], Field(max_length=1000)] | None = None
    """In the place of the old ones."""
    kwargs: dict[str, Any] | None = None
    """In the place of the old ones."""
    queue: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    """Default: the old one."""
    run_after: Moment | None = None
    run_after_seconds: Annotated[float, Strict, Field(ge=0, le=LONGEST_DELAY_SECONDS)] | None = None

    def moment(self) -> Any:
        """For `stoker.dead_letters`."""
        return moment_of(self.run_after, self.run_after_seconds)


class Many(Shape):
    """How many at a time, and how quickly."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    filters: Filters = Filters()
    all: Annotated[bool, Strict] = False
    """To be said where no filter is, and something is to be changed."""
    limit: Annotated[int, Strict, Field(ge=1, le=100_000)] = 100
    """At most so many; no more than `MAX_BULK` (1000)."""
    dry_run: Annotated[bool, Strict] = False
    """Change nothing, and tell how many there are."""
    because: Why = ""


class ThrottledMany(Many):
    """How many at a time, and how quickly."""

    pause_seconds: Annotated[float, Strict, Field(ge=0, le=LONGEST_THROTTLE_SECONDS)] = 0.0
    """Between one and the next. With `limit` it may come to 30 seconds in all."""


class RequeueingMany(ThrottledMany):
    """How many are to be sent again."""

    queue: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    run_after: Moment | None = None
    run_after_seconds: Annotated[float, Strict, Field(ge=0, le=LONGEST_DELAY_SECONDS)] | None = None


class Purging(Shape):
    """Which are to be deleted for good."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    older_than_seconds: Annotated[float, Strict, Field(ge=0, le=LONGEST_AGE_SECONDS)]
    """Since they were closed; for open ones, since they failed last."""
    state: Literal["closed", "resolved", "discarded", "open", "all"] = "closed"
    limit: Annotated[int, Strict, Field(ge=1, le=100_000)] = 1000
    dry_run: Annotated[bool, Strict] = False


def moment_of(run_after: Any, run_after_seconds: float | None) -> Any:
    """The one of both that was said.

    Raises:
        Refusal: both were.
    """
    if run_after is not None and run_after_seconds is not None:
        raise Refusal(422, "Say run_after or run_after_seconds, not both.")
    return run_after if run_after_seconds is None else run_after_seconds


def refuse_beyond_cap(limit: int) -> None:
    most = api_settings().max_bulk
    if limit > most:
        raise Refusal(422, f"limit: one call changes at most {most}; call again for the rest.")
