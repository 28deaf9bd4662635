"""Start steps of workflows: enqueue tasks, and open chains and groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from uuid import UUID

from django.db.models import Case, Count, F, Value, When, Window
from django.db.models.functions import RowNumber

from stoker.brokers.adapters import broker_for
from stoker.conf import Settings
from stoker.models import Step
from stoker.models.job import Message
from stoker.models.step import GROUPS, UNDER_WAY
from stoker.store.statements import update_by_key

from . import deliver as stored

WINDOW = 1000
"""Default maximum of running members of a group. The others wait in the store, so the cost for the
process that starts the group is bounded."""

State = Step.State


class Starter:
    """Starts steps of workflows that the caller has locked, in one transaction."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._steps = Step.objects.using(settings.database)
        self._messages: list[Message] = []

    def start(self, steps: Sequence[Step]) -> list[Step]:
        """Start the given steps. Return the empty groups, which end at once."""
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
        """Return the next members of a group that have not started."""
        waiting = self._steps.below([group.pk]).filter(state=State.PENDING)
        members = list(waiting.order_by("position")[:limit])
        if len(members) < limit:
            self._steps.filter(pk=group.pk).update(has_more=False)
        return members

    def rooms(self, limits: Mapping[UUID, int | None]) -> dict[UUID, int]:
        """Return how many members may start now in each group, if any may.

        Args:
            limits: group -> ``at_once``.
        """
        if not limits:
            return {}
        under_way = self._steps.below(limits.keys()).filter(state__in=UNDER_WAY)
        busy = dict(under_way.order_by().values_list("parent_id").annotate(Count("pk")))
        rooms = {pk: min(most or WINDOW, WINDOW) - busy.get(pk, 0) for pk, most in limits.items()}
        return {pk: room for pk, room in rooms.items() if room > 0}

    def waiting_members(self, workflow_id: UUID) -> list[Step]:
        """Return the members that may start now in the unfinished groups of a workflow, with four
        queries however many groups there are."""
        groups = self._steps.filter(workflow_id=workflow_id, kind__in=GROUPS, state=State.STARTED)
        rooms = self.rooms(dict(groups.filter(has_more=True).values_list("pk", "at_once")))
        if not rooms:
            return []
        number = Window(RowNumber(), partition_by=F("parent_id"), order_by=F("position").asc())
        most = Case(*(When(parent_id=pk, then=Value(room)) for pk, room in rooms.items()))
        waiting = self._steps.below(rooms).filter(state=State.PENDING)
        members = list(waiting.annotate(number=number).filter(number__lte=most))
        found = Counter(one.parent_id for one in members)
        update_by_key(
            self._steps, [pk for pk, room in rooms.items() if found[pk] < room], has_more=False
        )
        return members

    def deliver(self) -> None:
        """Enqueue the jobs of the started tasks."""
        messages, self._messages = self._messages, []
        broker_for(self._settings).deliver(messages)

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
        """Return the members of the given groups that may start now."""
        if len(groups) == 1:
            limit = min(groups[0].at_once or WINDOW, WINDOW)
            members = self.next_members(groups[0], limit)
            if groups[0].size > len(members):
                self._steps.filter(pk=groups[0].pk).update(has_more=True)
            return members
        waiting = self._steps.below([group.pk for group in groups]).filter(state=State.PENDING)
        return list(waiting.order_by("parent_id", "position"))


def _in_bounds(groups: Sequence[Step]) -> Iterator[list[Step]]:
    """Split groups into batches: small ones together, large or limited ones alone."""
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
