"""``save_limit``: only so many successes are kept. Done now and then by whoever records, after the
commit, in batches, by an index."""

from __future__ import annotations

import time

from django.db.models import Count

from . import conf
from .models import Task

EVERY_SECONDS = 10.0
BATCH = 500
_next_at = 0.0


def prune_if_due() -> None:
    """Remove what is beyond ``save_limit``, at most once in a while."""
    global _next_at
    now = time.monotonic()
    if now >= _next_at:
        _next_at = now + EVERY_SECONDS
        prune()


def prune() -> int:
    """Remove what is beyond ``save_limit``, the oldest first. Returns how many rows."""
    limit = conf.Conf.SAVE_LIMIT
    if limit <= 0:
        return 0
    per = conf.Conf.SAVE_LIMIT_PER
    if per is None:
        return _prune(Task.objects.filter(success=True), limit)
    rows = Task.objects.filter(success=True).order_by()
    crowded = rows.values(per).annotate(count=Count("pk")).filter(count__gt=limit)
    return sum(_prune(rows.filter(**{per: one[per]}), limit) for one in crowded)


def _prune(rows: object, limit: int) -> int:
    newest_first = rows.order_by("-stopped", "-pk")  # type: ignore[attr-defined] # a query set
    removed = 0
    while old := list(newest_first.values_list("pk", flat=True)[limit : limit + BATCH]):
        removed += Task.objects.filter(pk__in=old, success=True).delete()[0]
    return removed
