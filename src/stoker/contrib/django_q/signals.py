"""The signals of Django Q.

``task`` is a dict with the keys id, name, func, args, kwargs, started, and those of hook, group and
cluster that were given. The sender is the text "django_q". Errors in receivers are logged and
otherwise ignored.
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
    """Forwards Stoker's ``pre_enqueue``, when the id of the job is known. It is connected to that
    signal while it has receivers."""

    _own_id = f"{__name__}.pre_enqueue"

    def connect(self, *args: Any, **kwargs: Any) -> None:
        super().connect(*args, **kwargs)
        before_enqueue.connect(_relay, dispatch_uid=self._own_id)

    def disconnect(self, *args: Any, **kwargs: Any) -> bool:
        was_connected = super().disconnect(*args, **kwargs)
        if not self.receivers:
            before_enqueue.disconnect(dispatch_uid=self._own_id)
        return was_connected


def _relay(task: Any, args: tuple[Any, ...], job_id: Any, **_: Any) -> None:
    if not (len(args) > 1 and isinstance(args[0], dict) and "func" in args[0]):
        return
    if isinstance(task, CallingTask):
        given, named = unpacked(conf.settings(), args[1])
        told = as_dict(args[0], job_id, given, named) | {"started": timezone.now()}
        pre_enqueue.send_robust(SENDER, task=told)


pre_enqueue = _BeforeEnqueue()
"""Sent before a job is created. Argument: ``task``."""
post_spawn = Signal()
"""Sent in each process of a cluster after its start. Argument: ``proc_name``."""
pre_execute = Signal()
"""Sent in the worker before the function is called. Arguments: ``func``, ``task``."""
post_execute_in_worker = Signal()
"""Sent in the worker after the function has returned or raised. Arguments: ``func``, and ``task``
with success and result."""
post_execute = Signal()
"""Sent in the monitor, in a separate thread, after the result was committed. Argument: ``task``
with success and result."""
