"""Create, change, pause and run schedules.

Names are loaded on first use, because the models are not ready when this package is imported.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .service import create as create
    from .service import delete as delete
    from .service import describe as describe
    from .service import find as find
    from .service import get as get
    from .service import next_ticks as next_ticks
    from .service import pause as pause
    from .service import resume as resume
    from .service import run_now as run_now
    from .service import scheduled as scheduled
    from .service import ticks as ticks
    from .service import update as update
    from .service import upsert as upsert

__all__ = [
    "create",
    "delete",
    "describe",
    "find",
    "get",
    "next_ticks",
    "pause",
    "resume",
    "run_now",
    "scheduled",
    "ticks",
    "update",
    "upsert",
]


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(".service", __name__), name)
