"""Start: the turn of steps has come. Tasks are enqueued; what holds steps starts the first of them,
or as many as may be under way at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from uuid import UUID

from stoker.brokers.base import Message
from stoker.conf import Settings
from stoker.models import Step
from stoker.models.statements import update_by_key
from stoker.models.step import GROUPS

from . import stored
from .deliver import deliver

WINDOW = 1000
"""How many members of a group are under way at once, unless it says less. The others wait in the
store: what a group costs the process that starts it has a bound."""

State = Step.State


class Starter:
    """Starts steps in one transaction, in workflows that are locked."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._steps = Step.objects.using(settings.database)
        self._messages: list[Message] = []

    def start(self, steps: Sequence[Step]) -> list[Step]:
        """Start these. Returns those that were over at once: groups of nothing."""
        level, empty = list(steps), list[Step]()
        while level:
            self._enqueue([step for step in level if step.kind == Step.Kind.TASK])
            holding = [step for step in level if step.kind != Step.Kind.TASK]
            groups = [step for step in holding if step.kind in GROUPS]
            nothing = [step for step in groups if not step.size]
            self._steps.become([step.pk for step in nothing], State.SUCCESSFUL)
            empty += nothing
            groups = [step for step in groups if step.size]
            chains = [step for step in holding if step.kind not in GROUPS]
            self._steps.become([step.pk for step in (*chains, *groups)], State.STARTED)
            level = self._firsts([step.pk for step in chains])
            for part in _in_bounds(groups):
                level += self._members(part)
        return empty

    def next_members(self, group: Step, limit: int) -> list[Step]:
        """The next members that wait for others to end."""
        waiting = self._steps.below([group.pk]).filter(state=State.PENDING)
        members = list(waiting.order_by("position")[:limit])
        if len(members) < limit:
            self._steps.filter(pk=group.pk).update(has_more=False)
        return members

    def room_of(self, group: Step, busy: int) -> list[Step]:
        """The members that may start now, of a group of which so many are under way."""
        limit = min(group.at_once or WINDOW, WINDOW)
        return self.next_members(group, limit - busy) if busy < limit else []

    def deliver(self) -> None:
        """Enqueue the jobs of the tasks that were started."""
        messages, self._messages = self._messages, []
        deliver(self._settings, messages)

    def _enqueue(self, tasks: Sequence[Step]) -> None:
        if not tasks:
            return
        for step in tasks:
            assert step.job_id is not None
            assert step.sealed is not None
            self._messages.append(stored.read(step.job_id, bytes(step.sealed)))
        ids = [step.pk for step in tasks]
        update_by_key(self._steps, ids, state=State.ENQUEUED, sealed=None)

    def _firsts(self, chain_ids: Sequence[UUID]) -> list[Step]:
        return list(self._steps.below(chain_ids).filter(position=0)) if chain_ids else []

    def _members(self, groups: Sequence[Step]) -> list[Step]:
        """Those members of these groups that may start now."""
        if len(groups) == 1:
            limit = min(groups[0].at_once or WINDOW, WINDOW)
            members = self.next_members(groups[0], limit)
            if groups[0].size > len(members):
                self._steps.filter(pk=groups[0].pk).update(has_more=True)
            return members
        waiting = self._steps.below([group.pk for group in groups]).filter(state=State.PENDING)
        return list(waiting.order_by("parent_id", "position"))


def _in_bounds(groups: Sequence[Step]) -> Iterator[list[Step]]:
    """Small groups together, large ones and those with a bound of their own each by itself."""
    part: list[Step] = []
    size = 0
    for group in groups:
        if group.size > (group.at_once or WINDOW):
            yield [group]
            continue
        if part and size + group.size > WINDOW:
            yield part
            part, size = [], 0
        part.append(group)
        size += group.size
    if part:
        yield part
