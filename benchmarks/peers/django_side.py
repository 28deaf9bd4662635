"""The common parts of peers on Django's `django.tasks`; each has its own `settings.py`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, ClassVar
from urllib.parse import urlsplit

from benchmarks.peers.side import FIRST_LINE, NOTHING, Peer, python_module

BULK = 1000


def django_settings(app: str, backend: str, options: dict[str, Any]) -> dict[str, Any]:
    """The settings of a small project with one app and one backend of tasks."""
    return {
        **django_basics(app),
        "TASKS": {"default": {"BACKEND": backend, "QUEUES": [], "OPTIONS": options}},
    }


def django_basics(app: str) -> dict[str, Any]:
    """The settings of a small project with one app, on the database of this run."""
    parts = urlsplit(os.environ["PEER_POSTGRES_URL"])
    return {
        "SECRET_KEY": "for benchmarks only",
        "USE_TZ": True,
        "DEFAULT_AUTO_FIELD": "django.db.models.BigAutoField",
        "INSTALLED_APPS": [app],
        "DATABASES": {
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "HOST": parts.hostname,
                "PORT": str(parts.port),
                "USER": parts.username,
                "NAME": parts.path.strip("/"),
                # As Django's documentation recommends for long-lived workers.
                "CONN_MAX_AGE": 600,
            }
        },
        # A log line for each job would be measured, too.
        "LOGGING": {
            "version": 1,
            "disable_existing_loggers": False,
            "handlers": {"console": {"class": "logging.StreamHandler", "level": "WARNING"}},
            "root": {"handlers": ["console"], "level": "WARNING"},
        },
    }


class DjangoPeer(Peer):
    """A backend for `django.tasks`."""

    folder: ClassVar[str]
    """Its folder here, with settings.py and tasks.py."""
    command: ClassVar[tuple[str, ...]]
    """Its management command."""
    processes: ClassVar[int] = 1
    """Number of processes of the command."""
    unfinished: ClassVar[str]
    """SQL that returns a row while jobs wait or run."""
    succeeded: ClassVar[str]
    """SQL that counts successful jobs."""

    def prepare(self) -> None:
        os.environ["DJANGO_SETTINGS_MODULE"] = f"benchmarks.peers.{self.folder}.settings"
        import django

        django.setup()
        from django.core.management import call_command
        from django.db import connection

        call_command("migrate", verbosity=0)
        self._connection = connection
        self._tasks = self.tasks()

    def tasks(self) -> dict[str, Any]:
        """Return the tasks by name."""
        from benchmarks.peers import django_tasks_side

        return {
            NOTHING: django_tasks_side.nothing,
            FIRST_LINE: django_tasks_side.first_line,
        }

    def enqueue(self, task: str, number: int) -> None:
        self._tasks[task].enqueue(number)

    def enqueue_many(self, count: int) -> None:
        """Enqueue in transactions of a thousand, for peers without a quicker way."""
        from django.db import transaction

        for numbers in chunks(count):
            with transaction.atomic():
                for number in numbers:
                    self._tasks[NOTHING].enqueue(number)

    def commands(self) -> list[list[str]]:
        return [python_module("django", *self.command)] * self.processes

    def is_settled(self, count: int) -> bool:
        return self._first(self.unfinished) is None

    def finished(self) -> int:
        found: int = self._first(self.succeeded)[0]
        return found

    def _first(self, query: str) -> Any:
        with self._connection.cursor() as cursor:
            cursor.execute(query)
            return cursor.fetchone()


def chunks(count: int, size: int = BULK) -> Iterator[range]:
    """Yield the numbers below ``count``, a thousand at a time."""
    for start in range(0, count, size):
        yield range(start, min(start + size, count))
