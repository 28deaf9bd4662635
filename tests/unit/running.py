"""A running job for tests that need no task."""

from typing import Any
from uuid import uuid4

from stoker.brokers.contract import Delivery
from stoker.conf import settings_for
from stoker.jobs.package import Package, sealer_for
from stoker.jobs.running import FoundTask, Running


def make_running(
    task: str, attempt: int = 1, *, calls: object = None, args: tuple[Any, ...] = ()
) -> Running:
    """Return an attempt of a job in the queue "mail". ``calls`` stands for the task object."""
    job_id = uuid4()
    package = Package(job_id, task, args, {}, "mail", 0, 0.0)
    return Running(
        Delivery(job_id, 1, sealer_for(settings_for()).seal(package), "mail", 0, attempt),
        package,
        FoundTask(calls, is_async=False, is_atomic=False, is_once=False),
        "default",
        started_at=0.0,
        function=print,
        timeout_seconds=None,
    )
