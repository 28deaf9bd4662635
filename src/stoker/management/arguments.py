"""Types of arguments for argparse, and conversion of values to text."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

from stoker.conf import option_fields
from stoker.operations.wording import first_line
from stoker.tasks.arguments import ShownCall
from stoker.values.durations import PROBLEM_OF_TEXT, duration_seconds
from stoker.values.marks import moment_from
from stoker.values.text import shown_json

LONGEST = timedelta(days=36_500)
"""The longest duration that an option accepts. A moment this long ago can still be computed."""
WIDTH = 56
"""Maximum number of characters of a call in a list, which fits 60 columns."""


def json_or_text(text: str) -> Any:
    """Parse the text as JSON. If it is not JSON, return the text itself."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except ValueError:
        return text


JSON_KINDS: dict[type[Any], str] = {
    list: "a list, as '[7, \"x\"]'",
    dict: "an object, as '{\"user_id\": 7}'",
}


def json_of(kind: type[Any]) -> Callable[[str], Any]:
    """Return an argparse type that parses JSON and accepts only values of this type."""

    def checked(text: str) -> Any:
        try:
            value = json.loads(text, parse_constant=_no_constant)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} is not JSON ({error})") from None
        if not isinstance(value, kind):
            raise argparse.ArgumentTypeError(f"{text!r} is not {JSON_KINDS[kind]}")
        return value

    return checked


def moment(text: str) -> datetime:
    """Parse a moment, as an argparse type: a duration from now, or ISO 8601. A moment without a
    zone is in the project's time zone."""
    return _moment(text, is_past=False)


def past_moment(text: str) -> datetime:
    """Parse a moment in the past, as an argparse type: an age, or as ``moment``."""
    return _moment(text, is_past=True)


def _moment(text: str, *, is_past: bool) -> datetime:
    try:
        return moment_from(text, is_past=is_past)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def written(value: Any) -> str:
    """Return the value as JSON if possible, else as Python writes it."""
    try:
        return shown_json(json.dumps(value, ensure_ascii=False, allow_nan=False))
    except (TypeError, ValueError):
        return repr(value)


def call_lines(call: ShownCall | None) -> Iterator[str]:
    """Yield the label of a call, or its arguments, as one line of a list; none if it has none."""
    text = "" if call is None else call.label or call.line
    if text:
        yield f"  {first_line(text, WIDTH)}"


def call_as_plain(call: ShownCall | None) -> dict[str, Any]:
    """Return the label and the arguments of a call for JSON; None = they cannot be read."""
    if call is None:
        return {"label": "", "args": None, "kwargs": None}
    return {
        "label": call.label,
        "args": [written(value) for value in call.args],
        "kwargs": {name: written(value) for name, value in call.kwargs.items()},
    }


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def duration(text: str) -> timedelta:
    """Parse a duration of up to ``LONGEST``, as an argparse type."""
    try:
        parsed = timedelta(seconds=duration_seconds(text))
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} {PROBLEM_OF_TEXT}") from None
    if not timedelta(0) <= parsed <= LONGEST:
        raise argparse.ArgumentTypeError(f"{text!r} must be between 0 and {LONGEST.days}d")
    return parsed


def positive(text: str) -> int:
    """Parse a whole number above 0, as an argparse type."""
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 2**31:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number above 0")
    return int(text)


def positive_seconds(text: str) -> float:
    """Parse a number of seconds above 0, as an argparse type."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= LONGEST.total_seconds():
        most = f"{LONGEST.total_seconds():.0f}"
        raise argparse.ArgumentTypeError(
            f"{text!r} must be a number of seconds above 0, and at most {most}"
        )
    return seconds


def setting(key: str, convert: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return an argparse type that accepts the values of the setting ``key``."""

    def checked(text: str) -> Any:
        try:
            return option_fields()[key].metadata["check"](convert(text))
        except ValueError as error:
            sentence = str(error) if str(error).startswith("must ") else "must be a number"
            raise argparse.ArgumentTypeError(f"{text!r} {sentence}") from None

    return checked
