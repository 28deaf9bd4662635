"""A job between its package and its outcome."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from stoker.brokers.base import Delivery
from stoker.package import Package
from stoker.results import Result

from .interruption import Interruption


@dataclass(slots=True)
class Opened:
    """A job ready to run."""

    delivery: Delivery
    package: Package
    task: Any
    function: Callable[..., Any]
    """What is called: the task's own, or one that calls it for each item of a list."""
    is_async: bool
    is_atomic: bool
    started_at: float
    timeout_seconds: float | None
    is_once: bool = False
    """Whether the job must not begin if it has begun before."""
    result: Result[Any] | None = None
    """None while nobody asks for it."""
    on_completing: Callable[[], object] = lambda: None
    """Called when an atomic task has returned, before that is recorded in its transaction."""
    interruption: Interruption = field(default_factory=Interruption)
