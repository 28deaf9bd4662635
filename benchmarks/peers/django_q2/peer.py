"""Django Q 2 on its ORM broker, tuned."""

from benchmarks.peers.django_side import DjangoPeer, chunks
from benchmarks.peers.side import serve

TASKS = "benchmarks.peers.side"


class DjangoQ2(DjangoPeer):
    """See Peer."""

    package = "django-q2"
    title = "Django Q 2, ORM broker"
    settings = "workers 2, bulk 100, queue_limit 200, poll 0.02 s, save_limit 0; CONN_MAX_AGE"
    delivery = "at least once"
    concurrency = "2 processes"
    results = "kept"
    folder = "django_q2"
    command = ("qcluster",)
    unfinished = "SELECT 1 FROM django_q_ormq LIMIT 1"
    succeeded = "SELECT count(*) FROM django_q_task WHERE success"

    def tasks(self) -> dict[str, str]:
        return {name: f"{TASKS}.{name}" for name in ("nothing", "first_line")}

    def enqueue(self, task: str, number: int) -> None:
        from django_q.tasks import async_task

        async_task(self._tasks[task], number)

    def enqueue_many(self, count: int) -> None:
        from django.db import transaction

        for numbers in chunks(count):
            with transaction.atomic():
                for number in numbers:
                    self.enqueue("nothing", number)


if __name__ == "__main__":
    serve(DjangoQ2)
