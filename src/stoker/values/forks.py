"""Renew locks and threads in forked children, on systems that can fork."""

from __future__ import annotations

import os
from collections.abc import Callable


def after_fork(renew: Callable[[], object]) -> None:
    """Call this in each forked child. There is none on Windows."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=renew)
