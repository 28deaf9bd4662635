"""The signals of Django Q. ``task`` is a dict with the keys id, name, func, args, kwargs, started,
and those of hook, group and cluster that were given.

A receiver that raises is logged and harms nothing.
"""

from __future__ import annotations

from django.dispatch import Signal

pre_enqueue = Signal()
"""In ``async_task``, before the job is made. ``task``."""
post_spawn = Signal()
"""In each process of a cluster, once it has begun. ``proc_name``."""
pre_execute = Signal()
"""In the worker, before the function is called. ``func``, ``task``."""
post_execute_in_worker = Signal()
"""In the worker, after the function has returned or raised. ``func``, ``task``, with success and
result."""
post_execute = Signal()
"""In the monitor, after the result was committed. ``task``, with success and result."""
