"""Progress bars: on a terminal, where rich is installed; elsewhere nothing is shown."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from stoker.values.progress import told_to


@contextmanager
def bar(words: str) -> Iterator[None]:
    """Show on standard error how far what is done inside has come. It is gone afterwards.

    Args:
        words: what is done, as ``requeueing``.
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
