"""Django Q 2 with its Redis broker."""

import os
from typing import Any

from redis import Redis

from benchmarks.peers.side import NOTHING, Peer, python_module, serve


class DjangoQ(Peer):
    """Tuned, or with its defaults (`django_q2_redis:default`)."""

    package = "django-q2"
    servers = ("redis", "postgres")

    def __init__(self, variant: str) -> None:
        super().__init__(variant)
        self.title = "Django Q 2 on Redis"
        tuned = ", queue_limit 500, recycle 100,000, no scheduler, kept connections"
        self.settings = "save_limit 0" + ("" if variant else tuned)
        self.delivery = "at most once: a killed cluster's jobs are lost"
        self.concurrency = "2 processes"
        self.results = "kept, in PostgreSQL"

    def prepare(self) -> None:
        os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.peers.django_q2_redis.settings"
        import django

        django.setup()
        from django.core.management import call_command
        from django_q.models import Success
        from django_q.tasks import async_task

        call_command("migrate", verbosity=0)
        self._redis: Any = Redis.from_url(os.environ["PEER_REDIS_URL"])
        self._async_task: Any = async_task
        self._success: Any = Success

    def enqueue(self, task: str, number: int) -> None:
        self._async_task(f"benchmarks.peers.side.{task}", number)

    def enqueue_many(self, count: int) -> None:
        for number in range(count):  # it has nothing for many
            self.enqueue(NOTHING, number)

    def commands(self) -> list[list[str]]:
        return [python_module("django", "qcluster")]

    def is_settled(self, count: int) -> bool:
        """Only a count shows it, because it pops a job before it runs it."""
        return not self._redis.exists("django_q:bench:q") and self.finished() >= count

    def finished(self) -> int:
        return int(self._success.objects.count())


if __name__ == "__main__":
    serve(DjangoQ)
