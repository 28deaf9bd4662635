"""Signals of Stoker's own; those of Django's tasks (enqueued, started, finished) are sent as well.

A receiver that raises is logged and harms nothing. The sender is the backend's class, unless said
otherwise. Further arguments may be added: receivers take ``**kwargs``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.dispatch import Signal

pre_enqueue = Signal()
"""Before a job is sealed. ``task``, ``args``, ``kwargs``: the call, not to be changed;
``job_id``: a UUID, of which there will be no job if the call turns out to be a duplicate;
``metadata``: a dict of strings that travels with the job, to be added to (a trace id, say)."""

post_spawn = Signal()
"""In each process of a cluster, once Django is set up in it. ``role``: pusher, monitor, scheduler
or worker; ``number``: which worker; ``backend``: the cluster's, by its name under ``TASKS``. The
sender is the class that stands for the process."""

pre_exit = Signal()
"""In each process of a cluster, before it ends of its own accord. ``seconds``: how long receivers
may take, all together: then it ends all the same. The sender is as with post_spawn."""

pre_execute = Signal()
"""In the worker, before each attempt. ``task_result``: the attempt's, as its context has it."""

post_execute_in_worker = Signal()
"""In the worker, after each attempt, before it is recorded. ``task_result``: the attempt's;
``outcome``: what it came to, of stoker.jobs.outcomes."""

post_execute = Signal()
"""In the monitor, when a job is over and that is committed. ``task_result``: the job's;
``outcome``: what its last attempt came to. Receivers run in a thread beside the recording, one
after the other. What takes long or must not be lost belongs into a job, see ``on_finish``."""

dead_lettered = Signal()
"""A job used up its tries and is recorded as a dead letter, or in the one there is of it already.
In the monitor, after the commit. ``dead_letter``: its row."""

attempt_failed = Signal()
"""An attempt failed, for good or to be tried again. ``failure``: a Failure, of
stoker.jobs.failures. Once for each: in the worker, while the exception is being handled; in
the monitor, where the worker died of it or the cluster itself says that it failed."""

post_tick = Signal()
"""In the scheduler, when a tick of a schedule is committed. ``fired``: a Fired, of
stoker.schedules.fire: what became of it, and the job."""


event = Signal()
"""Sent in whichever process it happens in, with ``name`` and ``facts`` (a dict)."""


def tell(name: str, /, **facts: Any) -> None:
    """Report that something happened. A reporter that fails harms nothing."""
    event.send_robust(None, name=name, facts=facts)


Call = Callable[[], object]
_call_later: Callable[[str, Call], None] | None = None


def call_project(what: str, call: Call) -> None:
    """Call code of the project. In the monitor and the scheduler it runs in a thread of its own,
    because it may never return; elsewhere now.

    Args:
        what: which code, for the log.
        call: must not raise.
    """
    if _call_later is None:
        call()
    else:
        _call_later(what, call)


def call_project_with(call_later: Callable[[str, Call], None] | None) -> None:
    """Have all project code of this process called in another way; None = at once."""
    global _call_later
    _call_later = call_later
