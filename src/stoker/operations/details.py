"""Facts and arguments as every interface shows them: labels and order are declared once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from .wording import exactly, first_line, since, value_text


class Fact(NamedTuple):
    """One line of what is known of a thing."""

    label: str
    value: Any
    """A text, a number or a moment."""
    page: str = ""
    """The page of the dashboard that the value leads to, such as ``job``; "" = none."""
    hint: str = ""
    """What the label means."""

    @property
    def text(self) -> str:
        """Return the value as plain text."""
        if isinstance(self.value, datetime):
            return f"{exactly(self.value)}, {since(self.value)}"
        return f"{self.value:,}" if isinstance(self.value, int) else str(self.value)


def given(*facts: Fact) -> list[Fact]:
    """Return the facts that have a value."""
    return [fact for fact in facts if fact.value not in (None, "")]


def lines_of(facts: Sequence[Fact]) -> list[str]:
    """Return the facts as lines of text."""
    return [f"{fact.label.lower():<18}{first_line(fact.text, 300)}" for fact in facts]


def call_fact(args: Sequence[str] | None, kwargs: Mapping[str, str] | None) -> Fact:
    """Return the arguments of a call, given as texts, as one fact; None = they cannot be read."""
    if args is None or kwargs is None:
        return Fact("Arguments", "the package cannot be opened")
    return Fact("Arguments", ", ".join([*args, *(f"{k}={v}" for k, v in kwargs.items())]) or "none")


def call_of(args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the arguments of a call as texts; ``args`` None = the package cannot be opened."""
    return {
        "is_readable": args is not None,
        "args": [value_text(value) for value in args or ()],
        "kwargs": [(name, value_text(value)) for name, value in (kwargs or {}).items()],
    }


def call_hidden() -> dict[str, Any]:
    """Return what a page shows to users who may not see arguments."""
    return {"is_readable": True, "is_hidden": True, "args": [], "kwargs": []}
