"""Stop: what is under way below a step that has ended without it is ended, too."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from stoker.conf import Settings
from stoker.models import Cancellation, Step

State = Step.State

REASON = "another step of its group has failed"


class Stopper:
    """Ends steps in one transaction, in workflows that are locked."""

    def __init__(self, settings: Settings) -> None:
        self._alias = settings.database
        self._steps = Step.objects.using(self._alias)
        self._job_ids: list[UUID] = []

    def stop_below(self, parent_ids: Sequence[UUID]) -> None:
        """What these hold goes on no more; jobs that wait or run are to be ended."""
        level = list(parent_ids)
        while level:
            below = self._steps.filter(parent_id__in=level).exclude(role=Step.Role.ERROR)
            under_way = below.filter(state__in=(State.STARTED, State.UNDOING))
            enqueued = below.filter(state=State.ENQUEUED).exclude(job_id=None)
            self._job_ids += filter(None, enqueued.values_list("job_id", flat=True))
            level = list(under_way.values_list("pk", flat=True))
            self._steps.become(level, State.CANCELLED)

    def ask(self) -> list[UUID]:
        """Ask for the end of these jobs. Those that run are told by their cluster; those that wait
        are to be withdrawn when nothing is locked any more. Returns which they are."""
        job_ids, self._job_ids = self._job_ids, []
        Cancellation.objects.using(self._alias).ask_all(job_ids, REASON)
        return job_ids
