"""Stoker: background jobs for Django that are never lost, never doubled, never early.

This module contains the public names. They are loaded on first use, so that ``import stoker`` is
cheap and works before Django is set up.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stoker.jobs.current import fencing_number as fencing_number
    from stoker.jobs.current import job as job
    from stoker.jobs.results import Result as Result
    from stoker.jobs.states import JobState as JobState
    from stoker.locks.lock import lock as lock
    from stoker.schedules.fire import scheduled_moment as scheduled_moment
    from stoker.tasks.backoff import constant as constant
    from stoker.tasks.backoff import exponential as exponential
    from stoker.tasks.backoff import linear as linear
    from stoker.tasks.dead_letters import DeadLetters as DeadLetters
    from stoker.tasks.decorator import Task as Task
    from stoker.tasks.decorator import TaskContext as TaskContext
    from stoker.tasks.decorator import task as task
    from stoker.tasks.guards import InSequence as InSequence
    from stoker.tasks.guards import Limit as Limit
    from stoker.tasks.guards import Lock as Lock
    from stoker.tasks.guards import Rate as Rate
    from stoker.tasks.guards import Unique as Unique
    from stoker.tasks.schedules import Cron as Cron
    from stoker.tasks.schedules import every as every
    from stoker.tasks.schedules import once as once
    from stoker.tasks.signatures import chain as chain
    from stoker.tasks.signatures import chord as chord
    from stoker.tasks.signatures import group as group

    from .compat import TaskError as TaskError
    from .compat import TaskResultDoesNotExist as TaskResultDoesNotExist
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
    from .guards.limits import set_limit as set_limit
    from .workflows.current import acurrent_workflow as acurrent_workflow
    from .workflows.current import current_workflow as current_workflow
    from .workflows.results import WorkflowResult as WorkflowResult
    from .workflows.results import get_workflow as get_workflow

    __version__: str

_NAMES = {
    "compat": "TaskError TaskResultDoesNotExist",
    "exceptions": (
        "Cancel DuplicateJob JobCancelled JobFailed LeaseLost LockBusy LockLost NotInJob "
        "NotInWorkflow ResultTimeout Retry Snooze StokerError TaskCancelled TaskTimeout "
        "WorkflowNotFound"
    ),
    "guards.limits": "set_limit",
    "jobs.current": "fencing_number job",
    "jobs.results": "Result",
    "jobs.states": "JobState",
    "locks.lock": "lock",
    "schedules.fire": "scheduled_moment",
    "tasks.backoff": "constant exponential linear",
    "tasks.dead_letters": "DeadLetters",
    "tasks.decorator": "Task TaskContext task",
    "tasks.guards": "InSequence Limit Lock Rate Unique",
    "tasks.schedules": "Cron every once",
    "tasks.signatures": "chain chord group",
    "workflows.current": "acurrent_workflow current_workflow",
    "workflows.results": "WorkflowResult get_workflow",
}
"""Module -> the public names that it defines."""

_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
"""Public name -> the module that defines it."""

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
