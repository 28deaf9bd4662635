"""What happens in the engine room, said once; reporters put it into words.

``tell("worker_died", worker=1, ...)`` sends the signal ``event``. The sentence for each name stands
in reporters/logs.py; other reporters may listen to the same signal.
"""

from __future__ import annotations

from typing import Any

from django.dispatch import Signal

event = Signal()
"""Sent in whichever process it happens in, with ``name`` and ``facts`` (a dict)."""


def tell(name: str, /, **facts: Any) -> None:
    """Report that something happened. A reporter that fails harms nothing."""
    event.send_robust(None, name=name, facts=facts)
