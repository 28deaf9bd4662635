"""Record: what a job of the shim has come to becomes a row of ``Task``, and its hook a job, in the
transaction that records the job's end. What is to be in the cache is put there after the commit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from django.db import InterfaceError, OperationalError, transaction
from django.db.models.signals import post_save

from stoker.conf import Settings
from stoker.exceptions import PackageError
from stoker.jobs.package import Package, sealer_for
from stoker.models import Attempt, Job
from stoker.models.job import moment
from stoker.store.transactions import after_commit
from stoker.workflows.deliver import Ended

from . import conf
from .caching import keep
from .calls import hook_task
from .inline import inline
from .models import Task
from .models.sealed import Raw
from .pruning import prune_if_due
from .signals import SENDER, post_execute
from .spec import as_dict, name_of

logger = logging.getLogger("stoker")


def record(settings: Settings, ends: Sequence[tuple[Ended, bytes]]) -> None:
    """Called for jobs of a RecordedTask that have ended, with their packages, in the open
    transaction.

    Nothing that is wrong here may keep the end itself from being recorded: where something is, it
    is tried with each alone.
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


def task_of(task_id: str) -> Task:
    """The Task of a job that has ended, also where no row of it is kept.

    Raises:
        Task.DoesNotExist: there is neither (any more).
    """
    alias = conf.database()
    row: Task | None = Task.objects.filter(pk=task_id).first()
    if row is not None:
        return row
    job = Job.objects.using(alias).filter(pk=UUID(task_id)).exclude(status=None).first()
    if job is None:
        raise Task.DoesNotExist(f"There is no task {task_id} (any more).")
    value = None if job.value is None else bytes(job.value)
    ended = Ended(job.pk, str(job.status), job.attempts, value, "", job.reason)
    settings = conf.settings()
    return opened(_row(settings, ended, sealer_for(settings).open(bytes(job.package))))


def _record(settings: Settings, ends: Sequence[tuple[Ended, bytes]]) -> None:
    alias, saved = settings.database, []
    told: list[tuple[dict[str, Any], Task, bool]] = []
    for ended, data in ends:
        package = sealer_for(settings).open(data)
        spec, row = _spec_of(package), _row(settings, ended, package)
        is_saved = "cached" not in spec and _is_saved(spec, ended.has_succeeded)
        told.append((spec, row, is_saved))
        if is_saved:
            saved.append(row)
        if "id" in spec:  # it came from Django Q, which may have left its failures
            Task.objects.using(alias).filter(pk=row.pk, success=False).delete()
        if spec.get("hook") and not spec.get("sync"):
            hook_task.under(spec["hook"]).using(queue_name=package.queue).enqueue(
                spec["hook"], row.pk
            )
    Task.objects.using(alias).bulk_create(saved, ignore_conflicts=True)
    run = inline.get()
    if run is not None:
        run.announcements.append(partial(_tell_all, told))
    else:
        after_commit(alias, partial(_tell_all, told))


def _tell_all(told: Sequence[tuple[dict[str, Any], Task, bool]]) -> None:
    """After the commit. What one cannot be told of keeps nobody from being told of the others."""
    for spec, row, is_saved in told:
        try:
            _tell(spec, row, is_saved=is_saved)
        except Exception:
            logger.exception("Task %s has ended, and nobody was told of it.", row.pk)


def _tell(spec: dict[str, Any], row: Task, *, is_saved: bool) -> None:
    if "cached" in spec:
        keep(row, float(spec["cached"]))
    is_heard = is_saved and post_save.has_listeners(Task)
    if is_saved:
        prune_if_due()
    if not (is_heard or post_execute.has_listeners()):
        return
    shown = opened(row)
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
    """Failures always are."""
    return not has_succeeded or bool(spec.get("save", conf.Conf.SAVE_LIMIT >= 0))


def _row(settings: Settings, ended: Ended, package: Package) -> Task:
    spec = _spec_of(package)
    # What is pickled is bytes: it is not for this process to look into them.
    args, kwargs = (Raw(one) if isinstance(one, bytes) else one for one in package.args[-1])
    result: Any = Raw(ended.value) if ended.value is not None else None
    if not ended.has_succeeded:
        result = _story(settings, ended)
    return Task(
        id=spec.get("id") or ended.job_id.hex,
        name=name_of(spec, ended.job_id),
        func=spec["func"],
        hook=spec.get("hook"),
        args=args,
        kwargs=kwargs,
        result=result,
        group=spec.get("group"),
        cluster=spec.get("cluster") or package.queue,
        started=moment(package.enqueued_at),
        stopped=_now(),
        success=ended.has_succeeded,
        attempt_count=ended.attempt,
    )


def _spec_of(package: Package) -> dict[str, Any]:
    for one in package.args:
        if isinstance(one, dict) and "func" in one:
            return one
    raise PackageError(f"The package of job {package.job_id} is none of the shim's.")


def _story(settings: Settings, ended: Ended) -> str:
    """Of a failure: its message and its traceback, as Django Q has it."""
    attempts = Attempt.objects.using(settings.database)
    last = attempts.filter(job_id=ended.job_id).order_by("-number").first()
    traceback = last.traceback if last is not None else ""
    message = ended.message or (last.message if last is not None else "") or ended.exception_class
    return f"{message} : {traceback}" if traceback else message


def opened(row: Task) -> Task:
    """With values in the place of what is sealed."""
    sealer = sealer_for(conf.settings())
    for name in ("args", "kwargs", "result"):
        value = getattr(row, name)
        if isinstance(value, Raw):
            try:
                setattr(row, name, sealer.open_value(value))
            except PackageError as error:
                setattr(row, name, str(error))
    return row


def _now() -> datetime:
    return moment(time.time())
