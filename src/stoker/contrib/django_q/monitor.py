"""``django_q.monitor``: the state of clusters, for a terminal."""

from __future__ import annotations

import time
from typing import Any

from django.core.management.base import BaseCommand

from stoker.values.text import shown_text

from .status import Stat

EVERY_SECONDS = 1.0
CLEAR = "\x1b[H\x1b[2J"


def get_ids() -> list[str]:
    """Return the ids of the live clusters."""
    return [stat.cluster_id for stat in Stat.get_all()]


def show_until_stopped(command: BaseCommand, lines: Any, *, once: bool) -> None:
    """Write the lines repeatedly, at the same place of the terminal."""
    try:
        while True:
            text = shown_text("\n".join(lines()))
            is_terminal = bool(getattr(command.stdout, "isatty", bool)())
            command.stdout.write(text if once or not is_terminal else CLEAR + text)
            if once:
                return
            time.sleep(EVERY_SECONDS)
    except KeyboardInterrupt:
        return
