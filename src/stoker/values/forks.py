"""Renew locks and threads in forked children, on systems that can fork."""

from __future__ import annotations

import os
from collections.abc import Callable


def after_fork(renew: Callable[[], object]) -> None:
    """Register a function to be called in each forked child. Does nothing on systems that cannot
    fork."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=renew)
