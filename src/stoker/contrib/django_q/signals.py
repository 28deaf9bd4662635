"""The signals of Django Q. ``task`` is a dict with the keys id, name, func, args, kwargs, started,
and those of hook, group and cluster that were given. The sender is the text "django_q".

A receiver that raises is logged and harms nothing.
"""

from __future__ import annotations

from typing import Any

from django.dispatch import Signal
from django.utils import timezone

from stoker.signals import pre_enqueue as before_enqueue

from . import conf
from .spec import CallingTask, as_dict, unpacked

SENDER = "django_q"


class _BeforeEnqueue(Signal):
    """Sent where Stoker makes the job, which is where the id is known. Stoker's own signal is only
    listened to once somebody listens to this one."""

    def connect(self, *args: Any, **kwargs: Any) -> None:
        super().connect(*args, **kwargs)
        before_enqueue.connect(_relay, dispatch_uid=f"{__name__}.pre_enqueue")


def _relay(task: Any, args: tuple[Any, ...], job_id: Any, **_: Any) -> None:
    if not (len(args) > 1 and isinstance(args[0], dict) and "func" in args[0]):
        return
    if isinstance(task, CallingTask):
        given, named = unpacked(conf.settings(), args[1])
        told = as_dict(args[0], job_id, given, named) | {"started": timezone.now()}
        pre_enqueue.send_robust(SENDER, task=told)


pre_enqueue = _BeforeEnqueue()
"""Before a job is made, of which the id is known. ``task``."""
post_spawn = Signal()
"""In each process of a cluster, once it has begun. ``proc_name``."""
pre_execute = Signal()
"""In the worker, before the function is called. ``func``, ``task``."""
post_execute_in_worker = Signal()
"""In the worker, after the function has returned or raised. ``func``, ``task``, with success and
result."""
post_execute = Signal()
"""In the monitor, after the result was committed. ``task``, with success and result."""
