"""What the words after ``manage.py stoker dead`` have in common: filters, and how entries look."""

from __future__ import annotations

import argparse
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.core.management.base import CommandParser
from django.utils import timezone

from stoker.models import DeadLetter
from stoker.values.durations import PROBLEM, duration_seconds

from .enqueue import iso_moment

FILTERS = ("task", "queue", "key", "reason", "fingerprint", "failed_after", "failed_before", "text")
STATES = ("open", "requeued", "resolved", "discarded", "unclosed", "closed", "all")
SHOWN = (
    "id", "state", "task", "queue", "priority", "key", "reason", "exception_class", "message",
    "fingerprint", "failure_count", "first_failed_at", "failed_at", "enqueued_at", "job_id",
    "attempts", "worker_id", "requeued_count", "last_requeued_at", "last_requeued_by",
    "last_requeued_because", "successor_id", "closed_at", "closed_by", "closed_because",
)  # fmt: skip
"""Of an entry, as JSON."""


def add_filters(parser: CommandParser, *, state: bool = True) -> None:
    parser.add_argument(
        "--task", default="", metavar="PATH", help="Only this task, such as shop.tasks.charge."
    )
    parser.add_argument("--queue", default="", metavar="NAME", help="Only this queue.")
    parser.add_argument(
        "--key", default="", metavar="TEXT", help="Only those whose unique key contains this text."
    )
    parser.add_argument(
        "--reason",
        default="",
        choices=[reason.value for reason in DeadLetter.Reason],
        metavar="REASON",
        help="Only this reason: error, timeout, crash, expired, unreadable or unknown_task.",
    )
    parser.add_argument(
        "--fingerprint", default="", metavar="HEX", help="Only this fault (see `dead stats`)."
    )
    parser.add_argument(
        "--failed-after",
        type=past_moment,
        metavar="WHEN",
        help="Last failed after this time: an age such as 2h or 7d, or an ISO 8601 time.",
    )
    parser.add_argument(
        "--failed-before", type=past_moment, metavar="WHEN", help="Last failed before this time."
    )
    parser.add_argument(
        "--text",
        default="",
        metavar="TEXT",
        help="Only those with this text in the message, traceback, exception class, task or key.",
    )
    if state:
        parser.add_argument(
            "--state",
            default="unclosed",
            choices=STATES,
            metavar="STATE",
            help="open, requeued, resolved, discarded; unclosed (open and requeued), closed "
            "(resolved and discarded), all. Default: %(default)s.",
        )


def filters_of(options: dict[str, Any]) -> dict[str, Any]:
    """The filters that were given."""
    names = (*FILTERS, "state") if "state" in options else FILTERS
    return {name: options[name] for name in names if options[name]}


def past_moment(text: str) -> datetime:
    """An argparse type: so long ago, or ISO 8601; without a zone, the project's."""
    try:
        return timezone.now() - timedelta(seconds=duration_seconds(text))
    except (ValueError, OverflowError):
        return iso_moment(text, "a duration, as 2h or 7d,")


def duration(text: str) -> timedelta:
    """An argparse type."""
    try:
        return timedelta(seconds=duration_seconds(text))
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} {PROBLEM}") from None


def positive(text: str) -> int:
    """An argparse type: a whole number above 0."""
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 2**31:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number above 0")
    return int(text)


def as_plain(value: Any) -> Any:
    """For JSON."""
    return str(value) if isinstance(value, UUID) else value


def letter_as_plain(letter: DeadLetter) -> dict[str, Any]:
    return {name: as_plain(getattr(letter, name)) for name in SHOWN}


def shown_moment(value: datetime | None) -> str:
    """In the project's time zone, to the second."""
    if value is None:
        return ""
    local = timezone.localtime(value) if timezone.is_aware(value) else value
    return f"{local:%Y-%m-%d %H:%M:%S}"


def first_line(text: str, length: int = 100) -> str:
    line = text.strip().partition("\n")[0]
    return line if len(line) <= length else f"{line[: length - 3]}..."
