"""The menus that filter lists: tasks, queues, nodes, times."""

from __future__ import annotations

from typing import Any

from stoker.operations.jobs import nodes_of
from stoker.tasks.registry import tasks_of_apps

from . import figures
from .context import DashboardContext
from .spans import span_of

NARROWING = ("task", "queue", "node", "since", "until")
AGES = ("15m", "1h", "6h", "1d", "7d", "30d")


def menus_of(visit: DashboardContext) -> dict[str, Any]:
    """Return the filters of the request, and the choices of each."""
    given, span = visit.request.GET.dict(), span_of(visit, "day")
    task, queue = given.get("task", ""), given.get("queue", "")
    is_narrowed = any(given.get(name) for name in NARROWING)
    seen_tasks, seen_queues = figures.names(visit, span)
    tasks = {task, *tasks_of_apps(), *seen_tasks}
    queues = {queue, *visit.settings.queues, *seen_queues}
    return {
        "given": given,
        "is_narrowed": is_narrowed,
        "is_filtered": is_narrowed or bool(given.get("q")),
        "tasks": sorted(tasks - {""}),
        "queues": sorted(queues - {""}),
        "ages": AGES,
        "nodes": nodes_of(visit.settings),
    }
