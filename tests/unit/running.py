"""A running job for tests that need no task."""

from uuid import uuid4

from stoker.brokers.contract import Delivery
from stoker.jobs.package import Package
from stoker.jobs.running import FoundTask, Running


def make_running(task: str, attempt: int = 1, *, calls: object = None) -> Running:
    """Return an attempt of a job in the queue "mail". ``calls`` stands for the task object."""
    job_id = uuid4()
    return Running(
        Delivery(job_id, 1, b"", "mail", 0, attempt),
        Package(job_id, task, (), {}, "mail", 0, 0.0),
        FoundTask(calls, is_async=False, is_atomic=False, is_once=False),
        "default",
        started_at=0.0,
        function=print,
        timeout_seconds=None,
    )
