"""Unique keys found by their text, without an index on it: their ids are made of it."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from django.utils import timezone

from stoker.guards.keys import ids_of_unique_text
from stoker.models import Tally

SINCE = timedelta(days=1)
MOST_TASKS = 500


def key_ids_of(alias: str, text: str, task: str) -> list[UUID]:
    """The keys that this text may be: of everybody, and of each task of which something was
    recorded lately.

    Args:
        text: as it comes out of the task's own, as "feed:7" of ``Unique("feed:{feed}")``.
        task: its dotted path, where it is known.
    """
    if task:
        return ids_of_unique_text(text, [task])
    since = int((timezone.now() - SINCE).timestamp())
    tallies = Tally.objects.using(alias).between(since, timezone.now().timestamp())
    tasks = tallies.order_by().values_list("task", flat=True).distinct()[:MOST_TASKS]
    return ids_of_unique_text(text, tasks)
