"""Stoker with its default options and two workers."""

import json
import os
from urllib.parse import urlsplit

import django

from benchmarks.peers.side import NOTHING, Peer, python_module, serve


class Stoker(Peer):
    """The usual settings of a project, on PostgreSQL."""

    package = "django-stoker"

    def __init__(self, variant: str) -> None:
        super().__init__(variant)
        self.title = "Stoker"
        self.settings = "defaults"
        self.delivery = "at least once, fenced"
        self.concurrency = "2 processes"
        self.results = "kept"

    def prepare(self) -> None:
        parts = urlsplit(os.environ["PEER_POSTGRES_URL"])
        entry = {
            "ENGINE": "django.db.backends.postgresql",
            "HOST": parts.hostname,
            "PORT": parts.port,
            "USER": parts.username,
            "NAME": parts.path.strip("/"),
        }
        os.environ["STOKER_BENCH_DATABASE"] = json.dumps(entry)
        os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
        django.setup()
        from django.core.management import call_command

        from benchmarks.peers.stoker import tasks

        call_command("migrate", verbosity=0)
        self._tasks = {"nothing": tasks.nothing, "first_line": tasks.first_line}
        self._last = ""

    def enqueue(self, task: str, number: int) -> None:
        self._last = self._tasks[task].enqueue(number).id

    def enqueue_many(self, count: int) -> None:
        results = self._tasks[NOTHING].enqueue_many(((number,), {}) for number in range(count))
        self._last = results[-1].id

    def commands(self) -> list[list[str]]:
        return [python_module("django", "stoker", "run")]

    def is_settled(self, count: int) -> bool:
        from stoker.models import Claimed, Deferred, Job, Ready

        # The last job is looked up first, because the other look-ups scan dead rows.
        if not Job.objects.filter(pk=self._last, status__isnull=False).exists():
            return False
        return not any(place.objects.exists() for place in (Ready, Claimed, Deferred))

    def finished(self) -> int:
        from stoker.models import Job

        return Job.objects.filter(status=Job.Status.SUCCESSFUL).count()


if __name__ == "__main__":
    serve(Stoker)
