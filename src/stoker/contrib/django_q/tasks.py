"""``django_q.tasks``, on Stoker."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

from stoker.models import Step
from stoker.tasks.signatures import chain as stoker_chain
from stoker.tasks.signatures import chord, group

from . import conf
from .asking import (
    count_group,
    count_group_cached,
    delete_cached,
    delete_group,
    delete_group_cached,
    fetch,
    fetch_cached,
    fetch_group,
    fetch_group_cached,
    queue_size,
    result,
    result_cached,
    result_group,
    result_group_cached,
)
from .calls import call_item, call_task, collect_task, item_task
from .inline import run_here
from .models import Schedule, Task
from .shapes import AsyncTask, Chain, Iter
from .spec import OPTIONS, Spec, packed, spec_of
from .timetable import schedule

logger = logging.getLogger("stoker")
Options = dict[str, Any]


def async_task(func: Any, *args: Any, **kwargs: Any) -> str:
    """Make a job of a call. Inside a transaction, it is there when that commits.

    Args:
        func: a function of a module, or its dotted path.
        args, kwargs: the function's, but for those of ``spec.OPTIONS``, which are taken out of
            kwargs, and for ``q_options``, a dict of such options, which come before those.

    Returns:
        The id of the job and of its Task: 32 hexadecimal digits.

    Raises:
        UnknownFunction: no worker would find the function.
        NotSerializable, PackageTooLarge: the arguments cannot travel.
        Exception: with ``sync=True``, what the function raises.
    """
    options = taken_out(kwargs)
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
    """Call a function once for each of these arguments, side by side. The results, in the order of
    the arguments, are that of one Task.

    Args:
        args_iter: of each call: its positional arguments as a tuple or list, or its one argument.
        kwargs: options, as ``async_task`` has them.

    Returns:
        The id of that Task.
    """
    options = taken_out(kwargs)
    options["cached"] = options.get("iter_cached") or options.get("cached")
    spec = spec_of(func, options)
    settings, items = conf.settings(), [_as_arguments(one) for one in args_iter]
    path = spec["func"]
    item: Spec = {"func": path}
    whole = packed(settings, items, {})
    if is_sync(options):
        found = [call_item(item, packed(settings, one, kwargs)) for one in items]
        here = varied(collect_task, path, options)
        return as_id(run_here(here, found, {**spec, "sync": True}, whole))
    # Neither is said of it: it only puts together what is there, as often as it takes.
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
    """Run calls one after the other, each when the one before has succeeded.

    Args:
        chain: of each step: ``(func, args, kwargs)``, of which the last two may be left out.

    Returns:
        The name of the group that the steps are in.
    """
    options = {"group": group, "cached": cached, "sync": sync, "broker": broker}
    return _chain(chain, options)[1]


def taken_out(kwargs: dict[str, Any]) -> Options:
    """The options among these keywords, which are left without them.

    Raises:
        ValueError: a broker is given: which one is used is said in the settings.
    """
    options: Options = {name: kwargs.pop(name) for name in OPTIONS if name in kwargs}
    options |= kwargs.pop("q_options", None) or {}
    broker = options.pop("broker", None)
    if broker is not None and getattr(broker, "list_key", None):
        options.setdefault("cluster", broker.list_key)
    return options


def is_sync(options: Mapping[str, Any]) -> bool:
    sync = options.get("sync")
    return bool(conf.Conf.SYNC if sync is None else sync)


def varied(task: Any, path: str, options: Mapping[str, Any]) -> Any:
    """The task for the function at that path, with what these options say."""
    changes: dict[str, Any] = {"backend": conf.alias(), "queue_name": conf.queue()}
    if options.get("cluster"):
        changes["queue_name"] = conf.queue(str(options["cluster"]))
    if options.get("timeout") is not None:
        changes["timeout"] = options["timeout"]
    if options.get("ack_failure"):
        changes["max_attempts"] = 1
    return replace(task, path=path, **changes)


def as_id(job_id: str) -> str:
    """As Django Q writes them."""
    return job_id.replace("-", "")


def call_here(spec: Spec, arguments: Any, options: Mapping[str, Any]) -> str:
    """Make the call here and now, and its hook's. Raises what the function raises; what goes wrong
    with the hook is logged, as the call is over by then."""
    job_id = run_here(varied(call_task, spec["func"], options), {**spec, "sync": True}, arguments)
    if spec.get("hook"):
        from .calls import run_hook

        try:
            run_hook(spec["hook"], job_id)
        except Exception:
            logger.exception("The hook %s of task %s failed.", spec["hook"], job_id)
    return job_id


def _chain(chain: Sequence[Any], options: Options) -> tuple[str, str]:
    """The id of the first step, and the group."""
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
        return _chain_here(steps), name
    nodes = [
        varied(call_task, spec["func"], own).si(spec, arguments) for own, spec, arguments in steps
    ]
    workflow = stoker_chain(*nodes).enqueue()
    first = Step.objects.using(settings.database).filter(workflow_id=workflow.id, position=0)
    job_id = first.exclude(job_id=None).values_list("job_id", flat=True).get()
    return as_id(str(job_id)), name


def _chain_here(steps: Sequence[tuple[Options, Spec, Any]]) -> str:
    ids = [call_here(spec, arguments, own) for own, spec, arguments in steps]
    return ids[0]


def _parts(step: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Of a step of a chain: ``func`` or ``(func, args, kwargs)``."""
    if not isinstance(step, tuple | list):
        return step, (), {}
    func, *rest = step
    args: Any = ()
    kwargs: dict[str, Any] = {}
    for part in rest:
        if isinstance(part, Mapping):
            kwargs = dict(part)
        else:
            args = _as_arguments(part)
    return func, tuple(args), kwargs


def _as_arguments(one: Any) -> list[Any]:
    return list(one) if isinstance(one, tuple | list) else [one]


def _last_job(workflow_id: str) -> str:
    """The job in which the results are put together: the second step of the chord. Its id is known
    from the beginning."""
    steps = Step.objects.using(conf.database()).filter(workflow_id=workflow_id)
    row = steps.filter(parent_id=workflow_id, position=1).exclude(job_id=None)
    return as_id(str(row.values_list("job_id", flat=True).get()))


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
