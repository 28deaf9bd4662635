"""dj-queue: two worker processes, each with three threads, woken by LISTEN and NOTIFY."""

from benchmarks.peers.django_side import DjangoPeer, chunks
from benchmarks.peers.side import NOTHING, serve


class DjQueue(DjangoPeer):
    """See Peer."""

    package = "dj-queue"
    title = "dj-queue"
    settings = "fork mode, processes 2, threads 3, LISTEN/NOTIFY; CONN_MAX_AGE"
    delivery = "at most once: a job whose worker was killed is recorded as failed"
    concurrency = "2 processes x 3 threads"
    results = "kept"
    folder = "dj_queue"
    command = ("dj_queue",)
    unfinished = """
        SELECT 1 FROM dj_queue_ready_executions UNION ALL SELECT 1 FROM dj_queue_claimed_executions
        LIMIT 1
    """
    succeeded = "SELECT count(*) FROM dj_queue_jobs WHERE finished_at IS NOT NULL"

    def enqueue_many(self, count: int) -> None:
        task = self._tasks[NOTHING]
        for numbers in chunks(count):
            task.get_backend().enqueue_all([(task, [number], {}) for number in numbers])


if __name__ == "__main__":
    serve(DjQueue)
