"""django-ox: two processes, each with ten threads."""

from benchmarks.peers.django_side import DjangoPeer, chunks
from benchmarks.peers.side import NOTHING, serve


class DjangoOx(DjangoPeer):
    """See Peer."""

    package = "django-ox"
    title = "django-ox"
    settings = "--processes 2 --concurrency 10 (it looks once a second when idle), CONN_MAX_AGE"
    delivery = "at least once, fenced"
    concurrency = "2 processes x 10 threads"
    results = "kept"
    folder = "django_ox"
    command = ("ox_worker", "--processes=2", "--concurrency=10")
    unfinished = """
        SELECT 1 FROM django_ox_oxtask WHERE status IN ('READY', 'WAITING', 'RUNNING') LIMIT 1
    """
    succeeded = "SELECT count(*) FROM django_ox_oxtask WHERE status = 'SUCCESSFUL'"

    def enqueue_many(self, count: int) -> None:
        from django_ox.bulk import enqueue_many

        for numbers in chunks(count):
            enqueue_many(self._tasks[NOTHING], [((number,), {}) for number in numbers])


if __name__ == "__main__":
    serve(DjangoOx)
