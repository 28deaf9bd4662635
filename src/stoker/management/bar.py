"""Progress bars on a terminal, if rich is installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from stoker.values.progress import told_to


@contextmanager
def bar(words: str) -> Iterator[None]:
    """Show a progress bar on standard error while the block runs.

    Args:
        words: The label of the bar, such as ``requeueing``.
    """
    if not sys.stderr.isatty():
        yield
        return
    try:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
    except ImportError:
        yield
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(words, total=None)
        with told_to(lambda done, total: progress.update(task, completed=done, total=total)):
            yield
