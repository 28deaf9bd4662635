"""Signals of Stoker. Django's signals for tasks (enqueued, started, finished) are sent as well.

Errors in receivers are logged and otherwise ignored. The sender is the backend's class unless
stated otherwise. Arguments may be added in later versions, so receivers must accept ``**kwargs``.

``post_execute``, ``dead_lettered`` and reports of lost workers are sent after the commit, at most
once: not if the process is killed at that moment, or if the connection to the database breaks
during the commit, for example in a failover. The rows are there nevertheless. For work that must
not be missed, use ``on_failure`` or ``on_finish``: such a hook is a job, which is added in the same
transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.dispatch import Signal

pre_enqueue = Signal()
"""Sent before a job is sealed. ``task``, ``args``, ``kwargs``: the call, read-only. ``job_id``: a
UUID, which remains unused if the call is a duplicate. ``metadata``: a dict of strings, stored in
the job's package; receivers may add entries, for example a trace id."""

post_spawn = Signal()
"""Sent in each process of a cluster, after Django was set up. ``role``: pusher, monitor, scheduler
or worker, or core for the first three with ``--single``; ``number``: of the worker; ``backend``:
the cluster's alias in ``TASKS``. The sender is the class of the process. A process that has not
started within ``START_SECONDS`` (120), receivers included, is killed and replaced."""

pre_exit = Signal()
"""Sent in each process of a cluster before it exits normally. ``seconds``: total time that
receivers may take before the process exits anyway. The sender is that of post_spawn."""

pre_execute = Signal()
"""Sent in the worker before each attempt. ``task_result``: as in the attempt's context."""

post_execute_in_worker = Signal()
"""Sent in the worker after each attempt, before it is recorded. ``task_result``: the attempt's
result; ``outcome``: a class of stoker.jobs.outcomes."""

post_execute = Signal()
"""Sent after the end of a job was committed, in the process that recorded it: in the monitor; in
the scheduler, if its cluster or host was lost; or in the worker, in the task's thread, if a task
with ``atomic=True`` succeeded. ``task_result``: the job's result; ``outcome``: the outcome of its
last attempt. In the monitor and the scheduler, receivers run one after the other, in a separate
thread. For long or important work use a job; see ``on_finish``."""

dead_lettered = Signal()
"""Sent in the monitor, or in the scheduler if the job's cluster or host was lost, after a failed
job was recorded as a dead letter, and committed. ``dead_letter``: the new or updated row. Receivers
run one after the other, in a separate thread."""

attempt_failed = Signal()
"""Sent once for each failed attempt, retried or not. ``failure``: a Failure of
stoker.jobs.failures. Sent in the worker while the exception is handled; in the monitor if the
worker died or the cluster failed the attempt; or in the scheduler if the cluster or host was
lost."""

post_tick = Signal()
"""Sent for each tick of a schedule after it was committed: in the scheduler, or in the process that
fires a schedule by hand. ``fired``: a Fired of stoker.schedules.fire, with the outcome and the job.
Missed ticks are told together, with their number."""


event = Signal()
"""Sent in any process, with ``name`` and ``facts`` (a dict)."""


def tell(name: str, /, **facts: Any) -> None:
    """Send an event to the reporters. Errors of reporters are ignored."""
    event.send_robust(None, name=name, facts=facts)


Call = Callable[[], object]
CallLater = Callable[[str, Call, bool], None]
_call_later: CallLater | None = None


def call_project(what: str, call: Call, *, is_apart: bool = False) -> None:
    """Call code of the project.

    In the monitor and the scheduler it runs in a separate thread, because it may never return;
    elsewhere it runs at once. Its errors are logged.

    Args:
        what: description of the code, for the log.
        call: the code.
        is_apart: whether the call must not wait, or be dropped, because other calls take long.
    """
    if _call_later is not None:
        _call_later(what, call, is_apart)
        return
    try:
        call()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - the project's code may raise anything
        tell("callback_failed", what=what, error=error)


def call_project_with(call_later: CallLater | None) -> None:
    """Set how this process calls code of the project. None: at once, in the same thread."""
    global _call_later
    _call_later = call_later
