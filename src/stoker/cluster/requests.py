"""The pusher's look at what its cluster is asked to do: to take no more jobs, or to stop.

The request stands in the cluster's row, and so lives as long as the cluster: a new pusher finds it
there.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from stoker.events import tell
from stoker.models import Cluster
from stoker.models.compiled import Compiled

from .patience import Patience
from .plan import Plan

LOOK_SECONDS = 0.9
"""Half of that costs an idle cluster a fifth of a percent of a core."""


class Requests:
    """What one cluster is asked.

    Args:
        say: tells the sentinel.
        recall: takes back from the workers what none of them has started.
    """

    def __init__(self, plan: Plan, say: Callable[..., None], recall: Callable[[], None]) -> None:
        own_row = Cluster.objects.using(plan.settings.database).filter(pk=plan.cluster_id)
        self._asked = Compiled(own_row.values_list("request"))
        self._say = say
        self._recall = recall
        self._has_said_stop = False
        self.is_quiet = False
        """Whether no more jobs are to be claimed."""
        self.next_look = 0.0
        """Monotonic seconds."""

    def look_if_due(self, patience: Patience) -> None:
        """Do what is asked. No row: there has been no sign of life yet, so nobody knows us."""
        if time.monotonic() < self.next_look:
            return
        self.next_look = time.monotonic() + LOOK_SECONDS
        answer = patience.call(self._asked.fetch)
        if answer is None or not answer.value:
            return
        ((request,),) = answer.value
        self._be_quiet(request != Cluster.Request.NONE)
        if request == Cluster.Request.STOP and not self._has_said_stop:
            self._has_said_stop = True
            self._say("stop_requested")

    @property
    def standing(self) -> str:
        """What is written where the row has to be written anew."""
        if self._has_said_stop:
            return Cluster.Request.STOP
        return Cluster.Request.QUIET if self.is_quiet else Cluster.Request.NONE

    def _be_quiet(self, is_quiet: bool) -> None:
        if is_quiet is not self.is_quiet:
            self.is_quiet = is_quiet
            tell("cluster_quiet" if is_quiet else "cluster_resumed")
            if is_quiet:
                self._recall()
