"""Stoker: background jobs for Django that are never lost, never doubled, never early.

The front door. Names are loaded on first use, so that importing ``stoker`` costs nothing and works
before Django is set up.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .backoff import constant as constant
    from .backoff import exponential as exponential
    from .backoff import linear as linear
    from .compat import TaskError as TaskError
    from .compat import TaskResultDoesNotExist as TaskResultDoesNotExist
    from .composing import chain as chain
    from .composing import chord as chord
    from .composing import group as group
    from .dead_letter_policy import DeadLetters as DeadLetters
    from .exceptions import Cancel as Cancel
    from .exceptions import DuplicateJob as DuplicateJob
    from .exceptions import JobCancelled as JobCancelled
    from .exceptions import JobFailed as JobFailed
    from .exceptions import LeaseLost as LeaseLost
    from .exceptions import LockBusy as LockBusy
    from .exceptions import LockLost as LockLost
    from .exceptions import NotInJob as NotInJob
    from .exceptions import NotInWorkflow as NotInWorkflow
    from .exceptions import ResultTimeout as ResultTimeout
    from .exceptions import Retry as Retry
    from .exceptions import Snooze as Snooze
    from .exceptions import StokerError as StokerError
    from .exceptions import TaskCancelled as TaskCancelled
    from .exceptions import TaskTimeout as TaskTimeout
    from .exceptions import WorkflowNotFound as WorkflowNotFound
    from .guard_options import InSequence as InSequence
    from .guard_options import Limit as Limit
    from .guard_options import Lock as Lock
    from .guard_options import Rate as Rate
    from .guard_options import Unique as Unique
    from .guards.limits import set_limit as set_limit
    from .guards.locks import lock as lock
    from .lifecycle.job import job as job
    from .lifecycle.running import fencing_number as fencing_number
    from .lifecycle.scheduled import scheduled_moment as scheduled_moment
    from .progress import JobState as JobState
    from .results import Result as Result
    from .schedule_options import Cron as Cron
    from .schedule_options import every as every
    from .schedule_options import once as once
    from .tasks import Task as Task
    from .tasks import TaskContext as TaskContext
    from .tasks import task as task
    from .workflows.current import acurrent_workflow as acurrent_workflow
    from .workflows.current import current_workflow as current_workflow
    from .workflows.results import WorkflowResult as WorkflowResult
    from .workflows.results import get_workflow as get_workflow

    __version__: str

_HOMES = {
    "Cancel": "exceptions",
    "Cron": "schedule_options",
    "DeadLetters": "dead_letter_policy",
    "DuplicateJob": "exceptions",
    "InSequence": "guard_options",
    "JobCancelled": "exceptions",
    "JobFailed": "exceptions",
    "JobState": "progress",
    "Limit": "guard_options",
    "Lock": "guard_options",
    "LeaseLost": "exceptions",
    "LockBusy": "exceptions",
    "LockLost": "exceptions",
    "NotInJob": "exceptions",
    "NotInWorkflow": "exceptions",
    "Rate": "guard_options",
    "Result": "results",
    "ResultTimeout": "exceptions",
    "Retry": "exceptions",
    "Snooze": "exceptions",
    "StokerError": "exceptions",
    "Task": "tasks",
    "TaskContext": "tasks",
    "TaskError": "compat",
    "TaskResultDoesNotExist": "compat",
    "TaskCancelled": "exceptions",
    "TaskTimeout": "exceptions",
    "Unique": "guard_options",
    "WorkflowNotFound": "exceptions",
    "WorkflowResult": "workflows.results",
    "acurrent_workflow": "workflows.current",
    "chain": "composing",
    "chord": "composing",
    "constant": "backoff",
    "every": "schedule_options",
    "current_workflow": "workflows.current",
    "exponential": "backoff",
    "fencing_number": "lifecycle.running",
    "job": "lifecycle.job",
    "get_workflow": "workflows.results",
    "group": "composing",
    "linear": "backoff",
    "lock": "guards.locks",
    "once": "schedule_options",
    "scheduled_moment": "lifecycle.scheduled",
    "set_limit": "guards.limits",
    "task": "tasks",
}
"""Name -> the module that it is from."""

__all__ = [*_HOMES, "__version__"]  # noqa: PLE0604 - the names are strings, from the table above


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("django-stoker")
    elif name in _HOMES:
        value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
