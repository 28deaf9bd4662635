"""Hand-written SQL for the same durable work, as a careful engineer would write it for one program.

There is one table. A claim marks up to 100 rows as running in one transaction, so that a crash
leaves a trace. When their work is done, another transaction marks them as done, with results and
times. There are no isolated processes, signatures, leases or retries.
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
        """Create an empty table."""

    def insert(self, package: str) -> None:
        """Enqueue one job with one statement."""

    def insert_many(self, packages: Iterable[str]) -> None:
        """Enqueue many jobs in the quickest way that the database has, in one transaction."""

    def transaction(self) -> AbstractContextManager[Any]:
        """Open a transaction around several inserts."""

    def announce(self) -> None:
        """Wake up the waiting process, after the commit."""

    def claim(self) -> list[Row]:
        """Mark up to 100 jobs as running, and return them."""

    def finish(self, results: Sequence[Row]) -> None:
        """Mark jobs as done."""

    def listen(self) -> None:
        """Prepare for ``wait``."""

    def wait(self) -> None:
        """Sleep until a job may have arrived."""

    def results(self) -> list[str]:
        """Return the results of all jobs, in the order of their ids."""

    def close(self) -> None:
        """Close the connection."""


def reference_for(name: str, entry: dict[str, Any]) -> Reference:
    """Return the reference for a kind of database, connected to a database as in DATABASES."""
    module = importlib.import_module(f"benchmarks.reference.{name}")
    reference: Reference = module.connect(entry)
    return reference
