"""The live screen of ``stoker monitor``, by rich."""

from __future__ import annotations

import select
import sys
import termios
import time
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from django.db import DatabaseError, InterfaceError
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from stoker.conf import Settings
from stoker.exceptions import StokerError

from .monitored import Seen, look
from .subcommand import one_sentence

STYLES = {"running": "green", "quiet": "yellow", "stopping": "yellow"}


def watch(settings: Sequence[Settings], interval_seconds: float) -> None:
    """Show these backends until q is pressed. While the store is out of reach, that is shown."""
    live = Live(Text("Looking ..."), console=Console(), screen=True, auto_refresh=False)
    with live, keys():
        while True:
            live.update(_try_look(settings), refresh=True)
            if is_quit_within(interval_seconds):
                return


def screen_of(seen: Seen) -> RenderableType:
    """One look, as it is shown."""
    parts: list[RenderableType] = []
    for backend in seen.backends:
        parts.append(Text(f"{backend.name}  {seen.taken_at.astimezone():%H:%M:%S}", style="bold"))
        for title, columns, rows in backend.tables():
            parts.append(_table(title, columns, rows) if rows else Text(f"{title}", style="dim"))
    parts.append(Text("q: leave", style="dim"))
    return Group(*parts)


def _try_look(settings: Sequence[Settings]) -> RenderableType:
    try:
        return screen_of(look(settings))
    except (StokerError, DatabaseError, InterfaceError) as error:
        return Text(one_sentence(error), style="red")


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left", expand=False, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=number == 0)
    for row in rows:
        table.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in row))
    return table


@contextmanager
def keys() -> Iterator[None]:
    """Let keys be heard as they are pressed."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def is_quit_within(seconds: float) -> bool:
    """Wait so long for a key. Whether it was q, or nobody is there to press one any more."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        ready, _, _ = select.select([sys.stdin], [], [], left)
        if ready and sys.stdin.read(1) in ("q", "Q", ""):
            return True
    return False
