"""The backend class that ``TASKS`` names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.apps import apps
from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error

from stoker.tasks.decorator import AbsentTask, Call, Task

from .compat import BaseTaskBackend, InvalidTask, is_task
from .conf import ADD_THE_APP, Settings, problems, read_settings, settings_for
from .exceptions import ConfigurationError, InvalidTaskOption, UnknownTask
from .setting_values import QUEUE_NAME, is_queue_name

if TYPE_CHECKING:
    from stoker.jobs.results import Result
    from stoker.tasks.signatures import Node

    from .workflows.results import WorkflowResult

LONGEST_NAME = 255


class StokerBackend(BaseTaskBackend):
    """The backend for ``TASKS`` that keeps jobs in Stoker's store.

    Creating a backend loads no models and opens no connection, because Django creates one in every
    thread, and the first one while it imports the project's tasks. Methods check the settings
    before they import modules that need models.
    """

    task_class = Task
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        # check() and the first use report invalid settings. They must not prevent the import of
        # modules with tasks.
        queues, options = params.get("QUEUES", ["default"]), params.get("OPTIONS", {})
        sound = {
            "QUEUES": [] if problems(alias, {"QUEUES": queues}) else queues,
            "OPTIONS": options if isinstance(options, Mapping) else {},
        }
        super().__init__(alias, {**params, **sound})
        self._params = params
        self._settings: Settings | None = None

    @property
    def settings(self) -> Settings:
        """The checked options of this backend.

        Raises:
            ConfigurationError: an option is wrong; the message names the first one.
        """
        if self._settings is None:
            if apps.apps_ready and not apps.is_installed("stoker"):
                raise ConfigurationError(ADD_THE_APP)
            configured = getattr(django_settings, "TASKS", None) or {}
            if configured.get(self.alias) == self._params:
                self._settings = settings_for(self.alias)
            else:
                self._settings = read_settings(self.alias, self._params)
        return self._settings

    def validate_task(self, task: Any) -> None:
        """Check a task when it is defined, and again when it is enqueued.

        Raises:
            InvalidTask, InvalidTaskOption: an option is wrong; the message names the first one.
            UnknownTask: the task is a placeholder for one that no longer exists.
        """
        if isinstance(task, AbsentTask):
            raise UnknownTask(f"There is no task {task.module_path!r} here (any more).")
        if not _is_whole(task.priority):
            raise InvalidTask(
                "priority must be a whole number between -100 and 100. "
                f"It cannot be {task.priority!r}."
            )
        if not isinstance(task.queue_name, str) or not task.queue_name:
            raise InvalidTask(f"queue_name={task.queue_name!r}: write the name of a queue.")
        if not is_queue_name(task.queue_name):
            raise InvalidTask(f"queue_name={task.queue_name!r}: {QUEUE_NAME}.")
        if self.queues and task.queue_name not in self.queues:
            raise InvalidTask(
                f"{task.module_path}: Queue '{task.queue_name}' is not valid for backend. The "
                f"QUEUES of TASKS['{self.alias}'] are: {', '.join(sorted(self.queues))}. Add it "
                "there, write @task(queue_name=...), or set QUEUES to [], which allows any name."
            )
        if is_task(task.func):
            raise InvalidTask(
                f"{task.func.module_path} is a task already: write @task only once. using(...) "
                "makes variants of a task."
            )
        if not callable(task.func):
            raise InvalidTask(f"@task belongs on a function, not on {task.func!r:.100}.")
        if getattr(task.func, "__name__", "") == "<lambda>":
            raise InvalidTask(
                "A lambda has no name by which a worker could find it: write a function with def."
            )
        super().validate_task(task)
        if getattr(task, "atomic", False) and iscoroutinefunction(task.func):
            raise InvalidTaskOption(
                f"{task.module_path} is async, and Django has no transactions in async code: use "
                "atomic=True only with def."
            )
        if len(task.module_path) > LONGEST_NAME:
            raise InvalidTask(
                f"The name of the task {task.module_path} is longer than {LONGEST_NAME} characters."
            )

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Result[Any]:
        """Create a job for this call. See ``Task.enqueue``."""
        settings = self.settings
        from stoker.jobs.enqueue import enqueue

        return enqueue(settings, task, args, kwargs)

    async def aenqueue(self, task: Any, args: Any, kwargs: Any) -> Result[Any]:
        """Async version of ``enqueue``. It runs in the thread that holds the connection of this
        async context, and so in its open transaction."""
        return await sync_to_async(self.enqueue, thread_sensitive=True)(task, args, kwargs)

    def enqueue_many(self, task: Any, calls: Iterable[Call]) -> Sequence[Result[Any]]:
        """Create a job for each call. See ``Task.enqueue_many``."""
        settings = self.settings
        from stoker.jobs.enqueue import enqueue_many

        return enqueue_many(settings, task, calls)

    def enqueue_workflow(self, node: Node, name: str = "") -> WorkflowResult:
        """Create a workflow. See ``Node.enqueue``."""
        settings = self.settings
        from stoker.workflows.create import enqueue

        return enqueue(settings, node, name)

    def get_result(self, result_id: str) -> Result[Any]:
        """Return the result of one job.

        Raises:
            TaskResultDoesNotExist: no job with that id exists (any more), or the text is not an id.
        """
        settings = self.settings
        from stoker.jobs.results import fetch

        return fetch(settings, result_id)

    async def aget_result(self, result_id: str) -> Result[Any]:
        """Async version of ``get_result``."""
        return await sync_to_async(self.get_result, thread_sensitive=True)(result_id)

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        """Return the messages of ``manage.py check`` about this backend's settings."""
        if not apps.is_installed("stoker"):  # the other checks need models
            sentence = "TASKS names Stoker's backend, but 'stoker' is not in INSTALLED_APPS."
            return [Error(sentence, hint=ADD_THE_APP, id="stoker.E004")]
        from .checks import check_backend

        return check_backend(self.alias, self._params)


def _is_whole(priority: Any) -> bool:
    if isinstance(priority, float):
        return priority.is_integer()
    return isinstance(priority, int) and not isinstance(priority, bool)
