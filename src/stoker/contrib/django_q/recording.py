"""Record finished jobs of the shim as rows of ``Task``, enqueue their hooks, and prune old rows.

Rows and hooks are written in the transaction that records the job's end. Results are cached and
receivers of signals called after the commit, in the monitor in a separate thread. The upkeep of
clusters prunes: it keeps the last ``save_limit`` successes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from django.db import InterfaceError, OperationalError, transaction
from django.db.models import Count
from django.db.models.signals import post_save

from stoker.conf import Settings
from stoker.exceptions import PackageTooLarge
from stoker.jobs.package import sealer_for
from stoker.signals import call_project
from stoker.store.engines import engine_of
from stoker.store.statements import INSERT_BYTES, INSERTED_AT_ONCE
from stoker.store.transactions import after_commit
from stoker.store.written import parts_of
from stoker.workflows.deliver import Ended

from . import conf
from .calls import hook_task
from .inline import inline
from .models import Task
from .models.sealed import Raw
from .models.task import spec_in, task_row
from .results import keep
from .signals import SENDER, post_execute
from .spec import SEALED, as_dict

logger = logging.getLogger("stoker")

CACHE_SECONDS = 1.0
"""Longest time for which receivers wait until the result is in the cache."""
_cache_is_away = threading.Event()
"""Set if receivers have waited in vain for the cache. They do not wait again before the cache has
answered: if their queue is full, the monitor waits for it, as long as calls return."""


def record(settings: Settings, ends: Sequence[tuple[Ended, bytes]]) -> None:
    """Record finished jobs of a RecordedTask, in the open transaction.

    An error here must not prevent the end of the jobs from being recorded: on an error each job is
    recorded separately, and a failing one is logged.
    """
    try:
        with transaction.atomic(using=settings.database):
            _record(settings, ends)
    except (OperationalError, InterfaceError):
        raise
    except Exception:
        if len(ends) > 1:
            for one in ends:
                record(settings, [one])
        else:
            job_id = ends[0][0].job_id
            logger.exception("The end of job %s could not be shown as a Task.", job_id)


def _record(settings: Settings, ends: Sequence[tuple[Ended, bytes]]) -> None:
    alias, saved = settings.database, []
    told: list[tuple[dict[str, Any], Task, bool]] = []
    for ended, data in ends:
        package = sealer_for(settings).open(data)
        spec, row = spec_in(package), task_row(settings, ended, package)
        is_saved = "cached" not in spec and _is_saved(spec, ended.has_succeeded)
        told.append((spec, row, is_saved))
        if is_saved:
            _seal(row)
            engine_of(alias).refuse_too_large(b"".join(_sealed(row)))
            saved.append(row)
        if "id" in spec:  # it came from Django Q, which may have left its failures
            Task.objects.using(alias).filter(pk=row.pk, success=False).delete()
        # Otherwise an editor of the arguments may have chosen the hook.
        is_own = bool(package.options.via) and spec["func"] == package.task
        if spec.get("hook") and is_own and not spec.get("sync"):
            _enqueue_hook(spec["hook"], row, package.queue)
    for part in parts_of(saved, INSERTED_AT_ONCE, INSERT_BYTES, _sealed_bytes):
        Task.objects.using(alias).bulk_create(part, ignore_conflicts=True)
    due = [one for one in told if "cached" in one[0] or _is_announced(one[0], one[2])]
    announce = partial(_announce, due)
    run = inline.get()
    if run is not None:
        run.announcements.append(announce)
    else:
        after_commit(alias, announce)


def _seal(row: Task) -> None:
    """Seal the values of a row now, to know their size before the database refuses it. An error of
    the database would undo the end of the job, too."""
    sealer = sealer_for(conf.settings())
    for name in SEALED:
        value = getattr(row, name)
        if value is not None and not isinstance(value, Raw):
            setattr(row, name, Raw(sealer.seal_value(value)))


def _sealed(row: Task) -> list[bytes]:
    return [value for name in SEALED if isinstance(value := getattr(row, name), Raw)]


def _sealed_bytes(row: Task) -> int:
    return sum(map(len, _sealed(row)))


def _enqueue_hook(hook: str, row: Task, queue: str) -> None:
    """Enqueue the hook with the columns of the row, which may be pruned before the hook runs."""
    task = hook_task.under(hook).using(queue_name=queue, **conf.limits_of(queue, {}))
    try:
        task.enqueue(hook, row.pk, row.sealed_columns())
    except PackageTooLarge:  # the hook then needs the row or the job
        task.enqueue(hook, row.pk)


def _is_announced(spec: dict[str, Any], is_saved: bool) -> bool:
    is_heard = post_execute.has_listeners() or (is_saved and post_save.has_listeners(Task))
    return is_heard or "sync" in spec


def _announce(told: Sequence[tuple[dict[str, Any], Task, bool]]) -> None:
    """Cache and announce finished tasks after the commit. Caches and receivers may block, and the
    process that records must not wait for them."""
    for spec, row, is_saved in told:
        task, is_kept = f"task {row.pk} of {row.func}", None
        if "cached" in spec:  # it is not lost if receivers are slow
            is_kept = threading.Event()
            put = partial(_keep, row, float(spec["cached"]), is_kept)
            call_project(f"the cache, for {task}", put, is_apart=True)
        if _is_announced(spec, is_saved):
            call_project(f"receivers for {task}", partial(_tell, spec, row, is_saved, is_kept))


def _keep(row: Task, seconds: float, is_kept: threading.Event) -> None:
    try:
        keep(row, seconds)
    finally:
        is_kept.set()
        _cache_is_away.clear()


def _tell(spec: dict[str, Any], row: Task, is_saved: bool, is_kept: threading.Event | None) -> None:
    if is_kept is not None and not (_cache_is_away.is_set() or is_kept.wait(CACHE_SECONDS)):
        _cache_is_away.set()
    is_heard = is_saved and post_save.has_listeners(Task)
    if is_saved and "sync" in spec:  # there may be no cluster whose upkeep prunes
        prune_if_due()
    if not (is_heard or post_execute.has_listeners()):
        return
    shown = row.open_values()
    told = as_dict(spec, row.pk, shown.args or (), shown.kwargs or {})
    told |= {
        "started": row.started,
        "stopped": row.stopped,
        "success": row.success,
        "result": shown.result,
    }
    post_execute.send_robust(SENDER, task=told)
    if is_heard:
        post_save.send_robust(
            Task, instance=shown, created=True, raw=False, using=conf.database(), update_fields=None
        )


def _is_saved(spec: dict[str, Any], has_succeeded: bool) -> bool:
    """Return whether the row of a finished job is kept. Failures are always kept."""
    return not has_succeeded or bool(spec.get("save", conf.Conf.SAVE_LIMIT >= 0))


EVERY_SECONDS = 10.0
BATCH = 500
_next_at = 0.0


def prune_if_due() -> None:
    """Prune at most once every ``EVERY_SECONDS``."""
    global _next_at
    now = time.monotonic()
    if now >= _next_at:
        _next_at = now + EVERY_SECONDS
        prune(conf.settings())


def prune(settings: Settings, beat: Callable[[], None] = lambda: None) -> int:
    """Delete successes beyond ``save_limit``, oldest first. Return the number of rows."""
    limit = conf.Conf.SAVE_LIMIT
    if limit <= 0 or settings.database != conf.database():
        return 0
    per = conf.Conf.SAVE_LIMIT_PER
    if per is None:
        return _prune(Task.objects.filter(success=True), limit, beat)
    rows = Task.objects.filter(success=True).order_by()
    crowded = rows.values(per).annotate(count=Count("pk")).filter(count__gt=limit)
    return sum(_prune(rows.filter(**{per: one[per]}), limit, beat) for one in crowded)


def _prune(rows: object, limit: int, beat: Callable[[], None]) -> int:
    newest_first = rows.order_by("-stopped", "-pk")  # type: ignore[attr-defined] # a query set
    removed = 0
    while old := list(newest_first.values_list("pk", flat=True)[limit : limit + BATCH]):
        beat()
        removed += Task.objects.filter(pk__in=old, success=True).delete()[0]
    return removed
