"""The table of all operations."""

from __future__ import annotations

from . import (
    bulk,
    clusters,
    dead_letters,
    guards,
    jobs,
    queues,
    schedules,
    steps,
    store,
    waiting_jobs,
    workflows,
)

OPERATIONS = {
    operation.name: operation
    for module in (
        jobs,
        waiting_jobs,
        queues,
        guards,
        dead_letters,
        schedules,
        workflows,
        steps,
        clusters,
        store,
        bulk,
    )
    for operation in module.OPERATIONS
}
"""Name -> operation."""
