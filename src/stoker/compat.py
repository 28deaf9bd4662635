"""Import Django's tasks API from Django 6, or from ``django-tasks`` on older versions."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or find_spec("django.tasks") is not None:
    from django.tasks import signals as task_signals
    from django.tasks import task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import (
        DEFAULT_TASK_BACKEND_ALIAS,
        DEFAULT_TASK_PRIORITY,
        DEFAULT_TASK_QUEUE_NAME,
        TaskContext,
        TaskError,
        TaskResultStatus,
    )
    from django.tasks.base import Task as DjangoTask
    from django.tasks.base import TaskResult as DjangoTaskResult
    from django.tasks.exceptions import (
        InvalidTask,
        InvalidTaskBackend,
        TaskResultDoesNotExist,
        TaskResultMismatch,
    )

    TASKS_APP = "django.tasks"
else:
    from django_tasks import signals as task_signals
    from django_tasks import task_backends
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import (
        DEFAULT_TASK_BACKEND_ALIAS,
        DEFAULT_TASK_PRIORITY,
        DEFAULT_TASK_QUEUE_NAME,
        TaskContext,
        TaskError,
        TaskResultStatus,
    )
    from django_tasks.base import Task as DjangoTask
    from django_tasks.base import TaskResult as DjangoTaskResult
    from django_tasks.exceptions import (
        InvalidTaskBackendError as InvalidTaskBackend,
    )
    from django_tasks.exceptions import (
        InvalidTaskError as InvalidTask,
    )
    from django_tasks.exceptions import (
        TaskResultDoesNotExist,
        TaskResultMismatch,
    )

    TASKS_APP = "django_tasks"


def is_task(thing: Any) -> bool:
    """Return whether ``thing`` is a task of either API. Django 6 with ``django-tasks`` installed
    has both."""
    return isinstance(thing, DjangoTask) or _is_backport_task(thing)


def _is_backport_task(thing: Any) -> bool:
    kind = type(thing)
    return any(
        base.__module__ == "django_tasks.base" and base.__name__ == "Task" for base in kind.__mro__
    )


__all__ = [
    "DEFAULT_TASK_BACKEND_ALIAS",
    "DEFAULT_TASK_PRIORITY",
    "DEFAULT_TASK_QUEUE_NAME",
    "TASKS_APP",
    "BaseTaskBackend",
    "DjangoTask",
    "DjangoTaskResult",
    "InvalidTask",
    "InvalidTaskBackend",
    "TaskContext",
    "TaskError",
    "TaskResultDoesNotExist",
    "TaskResultMismatch",
    "TaskResultStatus",
    "is_task",
    "task_backends",
    "task_signals",
]
