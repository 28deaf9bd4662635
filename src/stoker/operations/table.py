"""All operations."""

from __future__ import annotations

from . import clusters, dead_letters, jobs, queues, schedules, workflows

OPERATIONS = {
    operation.name: operation
    for module in (jobs, queues, dead_letters, schedules, workflows, clusters)
    for operation in module.OPERATIONS
}
"""Name -> operation."""
