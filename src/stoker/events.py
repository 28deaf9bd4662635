"""What happens in the engine room, said once; reporters put it into words.

``tell("worker_died", worker=1, ...)`` sends the signal ``event``. The sentence for each name stands
in reporters/logs.py; other reporters may listen to the same signal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.dispatch import Signal

event = Signal()
"""Sent in whichever process it happens in, with ``name`` and ``facts`` (a dict)."""


def tell(name: str, /, **facts: Any) -> None:
    """Report that something happened. A reporter that fails harms nothing."""
    event.send_robust(None, name=name, facts=facts)


Call = Callable[[], object]
_call_later: Callable[[str, Call], None] | None = None


def call_project(what: str, call: Call) -> None:
    """Call code of the project. In the monitor and the scheduler it runs in a thread of its own,
    because it may never return; elsewhere now.

    Args:
        what: which code, for the log.
        call: must not raise.
    """
    if _call_later is None:
        call()
    else:
        _call_later(what, call)


def call_project_with(call_later: Callable[[str, Call], None] | None) -> None:
    """Have all project code of this process called in another way; None = at once."""
    global _call_later
    _call_later = call_later
