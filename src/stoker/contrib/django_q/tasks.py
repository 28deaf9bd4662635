"""``django_q.tasks``: enqueue calls, chains and iterations, and create schedules."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import uuid4

from django.db import IntegrityError, transaction

from stoker.models import Step
from stoker.schedules import service as schedules
from stoker.tasks.signatures import chain as stoker_chain
from stoker.tasks.signatures import chord, group

from . import conf
from .calls import call_hook, call_now, call_task, collect_task, item_task
from .inline import run_here
from .models import Schedule, Task
from .models.schedule import now
from .results import (
    count_group,
    count_group_cached,
    delete_cached,
    delete_group,
    delete_group_cached,
    fetch,
    fetch_cached,
    fetch_group,
    fetch_group_cached,
    fetch_whole_group,
    queue_size,
    result,
    result_cached,
    result_group,
    result_group_cached,
)
from .spec import OPTIONS, Options, Spec, function_at, packed, path_of, spec_of, taken_out

logger = logging.getLogger("stoker")


def async_task(func: Any, *args: Any, **kwargs: Any) -> str:
    """Enqueue a call. Inside a transaction, the job exists when the transaction commits.

    Args:
        func: a module-level function, or its dotted path.
        args, kwargs: the function's arguments. The options in ``spec.OPTIONS`` are taken out of
            kwargs, and so is ``q_options``, a dict of options. If a name is in ``q_options``, a
            keyword argument of that name is the function's.

    Returns:
        The id of the job and of its Task: 32 hexadecimal digits.

    Raises:
        UnknownFunction: a worker could not import the function.
        NotSerializable, PackageTooLarge: the arguments cannot be serialised.
        Exception: with ``sync=True``, any exception of the function.
    """
    return enqueue_call(func, args, kwargs, taken_out(kwargs))


def enqueue_call(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], options: Options
) -> str:
    """Enqueue a call, as ``async_task`` does. All of ``kwargs`` are the function's."""
    spec = spec_of(func, options)
    arguments = packed(conf.settings(), args, kwargs)
    followers = options.get("chain")
    if followers:
        steps = [(func, tuple(args), dict(kwargs)), *followers]
        return _chain(steps, {**options, "chain": None})[0]
    if is_sync(options):
        return call_here(spec, arguments, options)
    return as_id(varied(call_task, spec["func"], options).enqueue(spec, arguments).id)


def async_iter(func: Any, args_iter: Iterable[Any], **kwargs: Any) -> str:
    """Call a function once for each set of arguments, in parallel. One Task stores all results in
    the order of the arguments.

    Args:
        args_iter: for each call its positional arguments as a tuple, or its only argument.
        kwargs: options of ``async_task``.

    Returns:
        The id of that Task.
    """
    options = taken_out(kwargs)
    options["cached"] = options.get("iter_cached") or options.get("cached")
    spec = spec_of(func, options)
    settings = conf.settings()
    items = [list(one) if isinstance(one, tuple) else [one] for one in args_iter]
    path = spec["func"]
    item: Spec = {"func": path}
    whole = packed(settings, items, {})
    if is_sync(options):
        found = [[call_now(item, packed(settings, one, kwargs))] for one in items]
        here = varied(collect_task, path, options)
        return as_id(run_here(here, found, {**spec, "sync": True}, whole))
    # The callback only combines results, so the caller's limits do not apply to it.
    callback = varied(collect_task, path, {**options, "timeout": None, "ack_failure": None})
    if not items:
        return as_id(callback.enqueue([], spec, whole).id)
    task = varied(item_task, path, options)
    members = [task.s(item, packed(settings, one, kwargs)) for one in items]
    workflow = chord(group(members, on_failure="continue"), callback.s(spec, whole)).enqueue()
    return _last_job(workflow.id)


def async_chain(
    chain: Sequence[Any],
    group: str | None = None,
    cached: Any = None,
    sync: bool | None = None,
    broker: Any = None,
) -> str:
    """Run calls one after another, each after the previous one has succeeded.

    Args:
        chain: for each step ``(func, args, kwargs)``; ``args`` and ``kwargs`` may be omitted.

    Returns:
        The name of the steps' group.
    """
    options = {"group": group, "cached": cached, "sync": sync, "broker": broker}
    return _chain(chain, options)[1]


def is_sync(options: Mapping[str, Any]) -> bool:
    sync = options.get("sync")
    return bool(conf.Conf.SYNC if sync is None else sync)


def varied(task: Any, path: str, options: Mapping[str, Any]) -> Any:
    """Return a copy of the task that calls the function at that path, with these options."""
    queue = conf.queue(str(options["cluster"]) if options.get("cluster") else None)
    limits = conf.limits_of(queue, options)
    return replace(task, path=path, backend=conf.alias(), queue_name=queue, **limits)


def as_id(job_id: str) -> str:
    """Return a job id in Django Q's format, without hyphens."""
    return job_id.replace("-", "")


def call_here(spec: Spec, arguments: Any, options: Mapping[str, Any]) -> str:
    """Make the call and call its hook in this process. Return the id of the Task.

    Exceptions of the function are raised. Exceptions of the hook are logged, because the call has
    ended.
    """
    job_id = run_here(varied(call_task, spec["func"], options), {**spec, "sync": True}, arguments)
    if spec.get("hook"):
        try:
            call_hook(function_at(spec["hook"]), job_id)
        except Exception:
            logger.exception("The hook %s of task %s failed.", spec["hook"], job_id)
    return job_id


def _chain(chain: Sequence[Any], options: Options) -> tuple[str, str]:
    """Enqueue a chain. Return the id of the first step, and the group."""
    settings = conf.settings()
    name = str(options.get("group") or uuid4().hex)
    steps = []
    for step in chain:
        func, args, kwargs = _parts(step)
        own = {**options, **taken_out(kwargs), "group": name}
        steps.append((own, spec_of(func, own), packed(settings, args, kwargs)))
    if not steps:
        return "", name
    if is_sync(options):
        ids = [call_here(spec, arguments, own) for own, spec, arguments in steps]
        return ids[0], name
    nodes = [
        varied(call_task, spec["func"], own).si(spec, arguments) for own, spec, arguments in steps
    ]
    workflow = stoker_chain(*nodes).enqueue()
    first = Step.objects.using(settings.database).filter(workflow_id=workflow.id, position=0)
    job_id = first.exclude(job_id=None).values_list("job_id", flat=True).get()
    return as_id(str(job_id)), name


def _parts(step: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Split a step of a chain: ``func`` or ``(func, args, kwargs)``."""
    if not isinstance(step, tuple | list):
        return step, (), {}
    func, *rest = step
    args: Any = ()
    kwargs: dict[str, Any] = {}
    for part in rest:
        if isinstance(part, Mapping):
            kwargs = dict(part)
        else:
            args = part if isinstance(part, tuple | list) else (part,)
    return func, tuple(args), kwargs


def _last_job(workflow_id: str) -> str:
    """Return the id of the job that collects the results: the second step of the chord. It is known
    before the job is enqueued."""
    steps = Step.objects.using(conf.database()).filter(workflow_id=workflow_id)
    row = steps.filter(parent_id=workflow_id, position=1).exclude(job_id=None)
    return as_id(str(row.values_list("job_id", flat=True).get()))


class AsyncTask:
    """A call with options that can be changed until it runs. Each option of ``async_task`` is an
    attribute."""

    def __init__(self, func: Any, *args: Any, **kwargs: Any) -> None:
        self.func = func
        self.args = args
        self.kwargs = kwargs
        if kwargs.get("q_options") is not None:  # a copy: the caller's own stays as it is
            self.kwargs["q_options"] = dict(kwargs["q_options"])
        self.id = ""
        self.started = False

    def run(self) -> str:
        """Enqueue the job. Return its id."""
        self.id = async_task(self.func, *self.args, **self.kwargs)
        self.started = True
        return self.id

    def result(self, wait: int = 0) -> Any:
        """See ``tasks.result``."""
        return result(self.id, wait, self.cached) if self.started else None

    def fetch(self, wait: int = 0) -> Any:
        """See ``tasks.fetch``."""
        return fetch(self.id, wait, self.cached) if self.started else None

    def result_group(
        self, failures: bool = False, wait: int = 0, count: int | None = None
    ) -> list[Any] | None:
        """See ``tasks.result_group``."""
        return result_group(self.group, failures, wait, count, self.cached) if self.group else None

    def fetch_group(self, failures: bool = True, wait: int = 0, count: int | None = None) -> Any:
        """See ``tasks.fetch_group``."""
        return fetch_group(self.group, failures, wait, count, self.cached) if self.group else None

    def __getattr__(self, name: str) -> Any:
        if name in OPTIONS:
            options = self.kwargs.get("q_options") or {}
            return options.get(name, self.kwargs.get(name))
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in OPTIONS:
            options = self.kwargs.get("q_options")
            (self.kwargs if options is None else options)[name] = value
            self.started = False
        else:
            super().__setattr__(name, value)


class Iter:
    """Calls of one function with different arguments: see ``async_iter``."""

    def __init__(
        self,
        func: Any = None,
        args: Any = None,
        kwargs: dict[str, Any] | None = None,
        cached: Any = None,
        sync: bool | None = None,
        broker: Any = None,
    ) -> None:
        self.func = func
        self.args: list[Any] = list(args or [])
        self.kwargs = kwargs or {}
        self.cached = cached
        self.sync = sync
        self.broker = broker
        self.id: str | None = None
        self.started = False

    def append(self, *args: Any) -> int:
        """Add a call. Return the number of calls."""
        self.args.append(args)
        self.started = False
        return self.length()

    def run(self) -> str:
        """Enqueue the jobs. Return the id of the Task with the results."""
        options = {"cached": self.cached, "sync": self.sync, "broker": self.broker}
        given = {name: value for name, value in options.items() if value is not None}
        self.id = async_iter(self.func, self.args, **{**self.kwargs, **given})
        self.started = True
        return self.id

    def result(self, wait: int = 0) -> Any:
        """Return the results in the order of the calls. See ``tasks.result``."""
        return result(self.id, wait, self.cached) if self.started and self.id else None

    def fetch(self, wait: int = 0) -> Any:
        """See ``tasks.fetch``."""
        return fetch(self.id, wait, self.cached) if self.started and self.id else None

    def length(self) -> int:
        """Return the number of calls."""
        return len(self.args)


class Chain:
    """Calls that run one after the other: see ``async_chain``."""

    def __init__(
        self,
        chain: Any = None,
        group: str | None = None,
        cached: Any = None,
        sync: bool | None = None,
        broker: Any = None,
    ) -> None:
        self.chain: list[Any] = list(chain or [])
        self.group = group
        self.cached = cached
        self.sync = sync
        self.broker = broker
        self.started = False

    def append(self, func: Any, *args: Any, **kwargs: Any) -> int:
        """Add a step. Return the number of steps.

        If the chain was run before, its Tasks leave the group, so that the next run has only its
        own.
        """
        self.chain.append((func, args, kwargs))
        if self.started:
            delete_group(str(self.group), cached=self.cached)
        self.started = False
        return self.length()

    def run(self) -> str:
        """Enqueue the jobs. Return the name of their group."""
        self.group = async_chain(list(self.chain), self.group, self.cached, self.sync, self.broker)
        self.started = True
        return self.group

    def result(self, wait: int = 0) -> list[Any] | None:
        """Return the results of all steps after all have ended. If a step fails, the result stays
        None."""
        rows = self.fetch(failures=True, wait=wait)
        return None if rows is None else [row.result for row in rows]

    def fetch(self, failures: bool = True, wait: int = 0) -> Any:
        """Return the Tasks of all steps in order, after all have ended."""
        if not self.started or self.group is None:
            return None
        rows = fetch_whole_group(self.group, failures, wait, self.length(), self.cached)
        return None if rows is None else sorted(rows, key=lambda row: row.stopped)

    def current(self) -> int | None:
        """Return the number of finished steps; None = the chain has not been run."""
        return count_group(str(self.group), cached=self.cached) if self.started else None

    def length(self) -> int:
        """Return the number of steps."""
        return len(self.chain)


COLUMNS = ("hook", "minutes", "cron", "cluster", "intended_date_kwarg")


def schedule(func: Any, *args: Any, **kwargs: Any) -> Schedule:
    """Create a row of ``Schedule``, which calls a function at certain times.

    Args:
        func: a module-level function, or its dotted path.
        args, kwargs: the function's arguments: plain values. kwargs may also contain ``name``,
            ``hook``, ``schedule_type``, ``minutes``, ``repeats``, ``next_run``, ``cron``,
            ``cluster``, ``intended_date_kwarg``, and options of ``async_task``, also in
            ``q_options``.

    Raises:
        IntegrityError: a schedule of that name exists.
        InvalidSchedule: the message says which value is wrong.
    """
    name = kwargs.pop("name", None)
    columns = {key: kwargs.pop(key, None) for key in COLUMNS}
    if columns["hook"] is not None:
        columns["hook"] = path_of(columns["hook"])
    next_run: datetime = kwargs.pop("next_run", None) or now()
    row = Schedule(
        name=name,
        func=path_of(func),
        schedule_type=kwargs.pop("schedule_type", Schedule.ONCE),
        repeats=kwargs.pop("repeats", -1),
        next_run=next_run,
        **columns,
    )
    row.args = repr(tuple(args)) if args else None
    row.kwargs = repr(kwargs) if kwargs else None
    row.clean_fields(exclude=["args", "kwargs"])
    refusal = f"There is a schedule {name!r} already."
    with transaction.atomic(using=conf.database()):
        if name and Schedule.objects.filter(name=name).exists():
            raise IntegrityError(refusal)
        row.save()
        if name and _was_created_twice(row):
            raise IntegrityError(refusal)
    return row


def _was_created_twice(row: Schedule) -> bool:
    """Return whether another transaction has created a schedule of the same name at the same time.
    Then Stoker's schedule of this row has got another name."""
    own = schedules.find(backend=conf.alias())
    if row.own_id is None or own.filter(pk=row.own_id, name=row.name).exists():
        return False
    others = Schedule.objects.filter(name=row.name).exclude(pk=row.pk)
    # At REPEATABLE READ on MySQL, only a locking read sees the other row.
    return others.exists() or bool(others.select_for_update().exists())


__all__ = [
    "AsyncTask",
    "Chain",
    "Iter",
    "Schedule",
    "Task",
    "async_chain",
    "async_iter",
    "async_task",
    "count_group",
    "count_group_cached",
    "delete_cached",
    "delete_group",
    "delete_group_cached",
    "fetch",
    "fetch_cached",
    "fetch_group",
    "fetch_group_cached",
    "queue_size",
    "result",
    "result_cached",
    "result_group",
    "result_group_cached",
    "schedule",
]
