"""Format calls for messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

LONGEST = 200


def call(task: str, args: Iterable[Any], kwargs: Mapping[str, Any]) -> str:
    """Format a call, as in ``shop.tasks.add(1, second=2)``."""
    shown = [repr(value) for value in args]
    shown += [f"{name}={value!r}" for name, value in kwargs.items()]
    return f"{task}({', '.join(map(_short, shown))})"


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
