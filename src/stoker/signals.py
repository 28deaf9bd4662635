"""Signals of Stoker's own; those of Django's tasks (enqueued, started, finished) are sent as well.

A receiver that raises is logged and harms nothing. The sender is the backend's class, unless said
otherwise. Further arguments may be added: receivers take ``**kwargs``.
"""

from __future__ import annotations

from django.dispatch import Signal

pre_enqueue = Signal()
"""Before a job is sealed. ``task``, ``args``, ``kwargs``: the call, not to be changed;
``metadata``: a dict of strings that travels with the job, to be added to (a trace id, say)."""

post_spawn = Signal()
"""In each process of a cluster, once Django is set up in it. ``role``: pusher, monitor, scheduler
or worker; ``number``: which worker. The sender is the class that stands for the process."""

pre_execute = Signal()
"""In the worker, before each attempt. ``task_result``: the attempt's, as its context has it."""

post_execute_in_worker = Signal()
"""In the worker, after each attempt, before it is recorded. ``task_result``: the attempt's;
``outcome``: what it came to, of stoker.lifecycle.outcomes."""

post_execute = Signal()
"""In the monitor, when a job is over and that is committed. ``task_result``: the job's;
``outcome``: what its last attempt came to. Nothing is recorded while a receiver runs: what takes
its time belongs into a job, see ``on_finish``."""

dead_lettered = Signal()
"""A job used up its tries and is recorded as a dead letter, or in the one there is of it already.
In the monitor, after the commit. ``dead_letter``: its row."""
