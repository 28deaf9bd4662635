"""The tasks that run the shim's jobs.

The name of the function to call is in the signed package, so write access to the database does not
suffice to call another one, and neither does the permission to edit a job's arguments. These tasks
cannot be enqueued over HTTP.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar

from django.apps import apps
from django.conf import settings as django_settings
from django.utils import timezone

from stoker.exceptions import ConfigurationError, StokerError, UnknownTask
from stoker.jobs.running import current
from stoker.schedules.fire import scheduled_moment
from stoker.store.transactions import after_commit
from stoker.tasks.decorator import Task

from . import conf
from .inline import inline
from .instances import as_references, read_rows
from .signals import SENDER, post_execute_in_worker, pre_execute
from .spec import SEALED, CallingTask, Spec, as_dict, function_at, unpacked

RECORD = "stoker.contrib.django_q.recording.record"


class ItemsFailed(StokerError):
    """Some calls of an ``async_iter`` failed."""


class RecordedTask(CallingTask):
    """A task whose finished jobs are recorded as rows of the shim's ``Task``."""

    recorder: ClassVar[str] = RECORD

    def enqueue(self, *args: Any, **kwargs: Any) -> Any:
        """Enqueue a job. If it belongs to a schedule, update the schedule's row."""
        spec = args[0] if args and isinstance(args[0], dict) else {}
        if "schedule" not in spec:
            return Task.enqueue(self, *args, **kwargs)
        own = self.using(**conf.limits_of(self.queue_name, spec))
        result = Task.enqueue(own, *args, **kwargs)
        done = partial(_model("Schedule").refresh, spec["schedule"])
        after_commit(conf.database(), done)
        return result


def call(spec: Spec, arguments: Any) -> Any:
    """Run the function of an ``async_task``."""
    try:
        return _call(_function_of_job(str(spec["func"])), spec, arguments)
    except BaseException as error:
        if (run := inline.get()) is not None:
            run.error = error
        raise


def call_now(spec: Spec, arguments: Any) -> Any:
    """Run the function of a spec that the caller has made, without a job of its own."""
    return _call(function_at(str(spec["func"])), spec, arguments)


def _call(function: Callable[..., Any], spec: Spec, arguments: Any) -> Any:
    args, kwargs = unpacked(conf.settings(), arguments)
    moment = scheduled_moment()
    if spec.get("intended_date_kwarg") and moment is not None:
        kwargs[str(spec["intended_date_kwarg"])] = _as_text(moment)
    running = current.get()
    told = as_dict(spec, running.job_id if running else "", args, kwargs)
    pre_execute.send_robust(SENDER, func=function, task=told)
    try:
        value = function(*read_rows(args), **read_rows(kwargs))
        if conf.settings().serializer != "pickle":
            value = as_references(value)
    except BaseException as error:
        told |= {"success": False, "result": f"{type(error).__name__}: {error}"}
        post_execute_in_worker.send_robust(SENDER, func=function, task=told)
        raise
    told |= {"success": True, "result": value}
    post_execute_in_worker.send_robust(SENDER, func=function, task=told)
    return value


def _function_of_job(path: str) -> Callable[..., Any]:
    """Return the function at that path.

    Raises:
        UnknownTask: nothing callable is there, or the job was enqueued for another function. Users
            who may edit arguments must not choose the function.
    """
    running = current.get()
    if running is not None and running.task != path:
        raise UnknownTask(
            f"This job was enqueued to call {running.task!r}, but its arguments name {path!r}."
        )
    return function_at(path)


def _as_text(moment: datetime) -> str:
    """Format a moment in ISO 8601: in UTC, or naive if USE_TZ is False."""
    if django_settings.USE_TZ:
        return moment.astimezone(UTC).isoformat()
    return timezone.make_naive(moment).isoformat()


def call_item(spec: Spec, arguments: Any) -> list[Any]:
    """Run one call of an ``async_iter``. The result is in a list, to distinguish None from a
    failure."""
    return [call(spec, arguments)]


def collect(found: list[Any], spec: Spec, arguments: Any) -> list[Any]:
    """Return the results of an ``async_iter`` in the order of its items. Raises ItemsFailed."""
    failed = sum(one is None for one in found)
    if failed:
        raise ItemsFailed(
            f"{failed} of {len(found)} calls of {spec['func']} have failed: see the dead letters."
        )
    return [one[0] for one in found]


def run_hook(hook: str, task_id: str, columns: dict[str, Any] | None = None) -> None:
    """Call the hook at this path with the Task of the finished job.

    Args:
        columns: those of the Task, used if no row of it is kept. None = they were too large, or an
            earlier version enqueued the hook: then the Task is built from the job.
    """
    call_hook(_function_of_job(hook), task_id, columns)


def call_hook(
    function: Callable[..., Any], task_id: str, columns: dict[str, Any] | None = None
) -> None:
    """Call this hook with the Task of the finished job."""
    function(_model("Task").of_job(task_id, columns))


def _model(name: str) -> Any:
    """Return a model of this app by its name. It is looked up late because the models import this
    module."""
    return apps.get_model("stoker_django_q", name)


def _task(function: Any, kind: type[CallingTask] = RecordedTask, **options: Any) -> Any:
    with suppress(ConfigurationError):  # raised again when the task is used
        options["queue_name"] = conf.queue()
    return kind(func=function, backend=conf.alias(), **options)


call_task = _task(call)
item_task = _task(call_item, CallingTask)
collect_task = _task(collect, give_up_on=ItemsFailed)
hook_task = _task(run_hook, CallingTask, redact=SEALED)
