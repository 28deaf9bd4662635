"""Find, requeue, discard and purge dead letters.

Names are loaded on first use, because the models are not ready when this package is imported.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .service import Story as Story
    from .service import count as count
    from .service import discard as discard
    from .service import discard_many as discard_many
    from .service import find as find
    from .service import get as get
    from .service import purge as purge
    from .service import requeue as requeue
    from .service import requeue_many as requeue_many
    from .service import stats as stats
    from .service import undo_requeue as undo_requeue

__all__ = [
    "Story",
    "count",
    "discard",
    "discard_many",
    "find",
    "get",
    "purge",
    "requeue",
    "requeue_many",
    "stats",
    "undo_requeue",
]


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(".service", __name__), name)
