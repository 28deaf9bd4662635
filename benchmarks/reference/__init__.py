"""The same durable work by hand-written SQL: what a careful engineer would write for one program.

One table; a claim marks up to 100 rows as running, in a transaction of its own, so that a crash
leaves a trace; when their work is done they are marked as done, with results and times, in another.
No process is isolated from another, nothing is signed, nobody extends a lease, nothing is retried.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

BATCH = 100
TASK = "benchmarks.tasks.nothing"

Row = tuple[int, str]
"""Id of a job, and its package or its result as JSON."""


class Reference(Protocol):
    """Hand-written SQL for one kind of database, over one connection."""

    def create(self) -> None:
        """An empty table."""

    def insert(self, package: str) -> None:
        """One job, by one statement."""

    def insert_many(self, packages: Iterable[str]) -> None:
        """Many jobs in the quickest way that the database has, in one transaction."""

    def transaction(self) -> AbstractContextManager[Any]:
        """A transaction around several inserts."""

    def announce(self) -> None:
        """Wake up who waits, after the commit."""

    def claim(self) -> list[Row]:
        """Up to 100 jobs, marked as running."""

    def finish(self, results: Sequence[Row]) -> None:
        """Mark jobs as done."""

    def listen(self) -> None:
        """Get ready to ``wait``."""

    def wait(self) -> None:
        """Sleep until something may have come."""

    def results(self) -> list[str]:
        """The results of all jobs, in the order of their ids."""

    def close(self) -> None:
        """Close the connection."""


def reference_for(name: str, entry: dict[str, Any]) -> Reference:
    """The reference for a kind of database, connected to the one that DATABASES would name so."""
    module = importlib.import_module(f"benchmarks.reference.{name}")
    reference: Reference = module.connect(entry)
    return reference
