"""Pages of workflows, the newest first."""

from __future__ import annotations

from stoker.conf import Settings
from stoker.ids import parse_job_id
from stoker.models import Workflow
from stoker.progress import explained

from .results import WorkflowResult


def list_workflows(
    settings: Settings, state: str | None = None, after: str | None = None, limit: int = 20
) -> list[WorkflowResult]:
    """Up to ``limit`` workflows of a backend, by id, which sorts as they were made.

    Args:
        state: RUNNING, SUCCESSFUL, FAILED or CANCELLED; None = all.
        after: the id of the last one of the page before.

    Raises:
        ValueError: ``after`` is no id.
        BrokerUnavailable, NotMigrated: the store can't be read.
    """
    rows = Workflow.objects.using(settings.database).filter(backend=settings.alias)
    if state is not None:
        rows = rows.filter(state=state)
    if after is not None:
        parsed = parse_job_id(after)
        if parsed is None:
            raise ValueError(f"{after!r} is no id of a workflow")
        rows = rows.filter(pk__lt=parsed)
    with explained(settings.database):
        return [WorkflowResult(row) for row in rows.order_by("-pk")[:limit]]
