"""Start steps of workflows: enqueue tasks, and open chains and groups."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from operator import itemgetter
from uuid import UUID

from django.db.models import Count

from stoker.brokers.adapters import broker_for
from stoker.conf import Settings
from stoker.models import Step
from stoker.models.job import Message
from stoker.models.step import GROUPS, UNDER_WAY, StepQuerySet
from stoker.store.statements import update_by_key

from . import deliver as stored

WINDOW = 1000
"""Default maximum of running members of a group, and the number of jobs that one transaction starts
at most. The other members wait in the store, so the cost for the process that starts a group is
bounded, however its members are nested."""

State = Step.State


class Starter:
    """Starts steps of workflows that the caller has locked, in one transaction.

    Each step that starts gets at least one job: a group or chain continues when a step of it ends.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._steps = Step.objects.using(settings.database)
        self._messages: list[Message] = []
        self._left = WINDOW
        """Number of jobs that this transaction may still start. Steps that must start although none
        is left make it negative."""

    def start(self, steps: Sequence[Step]) -> list[Step]:
        """Start the given steps and, as far as this transaction may, the members of groups below
        them. Return the empty groups, which end at once."""
        level, empty = list(steps), list[Step]()
        self._left -= len(level)
        while level:
            self._enqueue([step for step in level if step.kind == Step.Kind.TASK])
            holding = [step for step in level if step.kind != Step.Kind.TASK]
            groups = [step for step in holding if step.kind in GROUPS]
            nothing = [step for step in groups if not step.size]
            self._steps.become([step.pk for step in nothing], State.SUCCESSFUL)
            self._left += len(nothing)
            empty += nothing
            groups = [step for step in groups if step.size]
            chains = [step for step in holding if step.kind not in GROUPS]
            self._steps.become([step.pk for step in (*chains, *groups)], State.STARTED)
            level = self._firsts([step.pk for step in chains])
            level += self._members(groups)
        return empty

    def next_members(self, groups: Sequence[Step]) -> list[Step]:
        """Return the next members of groups that have not started, at least one of each group that
        has one and room for it. The caller starts them at once."""
        rooms = self._rooms(groups)
        shares = self._divide(rooms)
        members, exhausted = list[Step](), list[UUID]()
        for pk in rooms:
            limit = max(shares[pk], 1)
            found = list(self._pending([pk]).order_by("position")[:limit])
            if len(found) < limit:
                exhausted.append(pk)
            members += found
        update_by_key(self._steps, exhausted, has_more=False)
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
        """Return the members that start together with these groups, at least one of each group."""
        # Each group has one job already.
        more = self._divide({group.pk: _limit(group) - 1 for group in groups})
        parts: dict[int | None, list[UUID]] = {}
        postponing: list[UUID] = []
        for group in groups:
            share = 1 + more[group.pk]
            if share < group.size:
                postponing.append(group.pk)
            parts.setdefault(share if share < group.size else None, []).append(group.pk)
        members: list[Step] = []
        for most, ids in parts.items():
            pending = self._pending(ids).order_by("parent_id", "position")
            members += pending if most is None else pending.filter(position__lt=most)
        update_by_key(self._steps, postponing, has_more=True)
        self._left -= sum(more.values())
        return members

    def _pending(self, group_ids: Collection[UUID]) -> StepQuerySet:
        return self._steps.below(group_ids).filter(state=State.PENDING)

    def _rooms(self, groups: Sequence[Step]) -> dict[UUID, int]:
        """Return how many members may start now in each group, if any may."""
        if not groups:
            return {}
        under_way = self._steps.below([one.pk for one in groups]).filter(state__in=UNDER_WAY)
        busy = dict(under_way.order_by().values_list("parent_id").annotate(Count("pk")))
        rooms = {one.pk: _limit(one) - busy.get(one.pk, 0) for one in groups}
        return {pk: room for pk, room in rooms.items() if room > 0}

    def _divide(self, rooms: Mapping[UUID, int]) -> dict[UUID, int]:
        """Divide the jobs that are left evenly among groups, so that none of them waits until
        another has ended. A group gets no more than it has room for."""
        left, shares = max(self._left, 0), dict[UUID, int]()
        for number, (pk, room) in enumerate(sorted(rooms.items(), key=itemgetter(1))):
            shares[pk] = min(room, left // (len(rooms) - number))
            left -= shares[pk]
        return shares


def _limit(group: Step) -> int:
    """Return the maximum number of running members of a group."""
    return min(group.at_once or WINDOW, WINDOW, group.size)
