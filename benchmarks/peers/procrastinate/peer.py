"""Procrastinate: two workers, each with ten coroutines."""

import os

import psycopg

from benchmarks.peers.side import FIRST_LINE, NOTHING, Peer, program, serve

TASKS = (NOTHING, FIRST_LINE)
UNFINISHED = "SELECT 1 FROM procrastinate_jobs WHERE status IN ('todo', 'doing') LIMIT 1"
SUCCEEDED = "SELECT count(*) FROM procrastinate_jobs WHERE status = 'succeeded'"
BULK = 1000


class Procrastinate(Peer):
    """See Peer."""

    package = "procrastinate"
    title = "Procrastinate"
    settings = "--concurrency 10"
    delivery = "at least once, if you write a periodic task that retries stalled jobs"
    concurrency = "2 processes x 10 coroutines"
    results = "a row without the value"

    def prepare(self) -> None:
        from benchmarks.peers.procrastinate import app

        url = os.environ["PEER_POSTGRES_URL"]
        self._connection = psycopg.connect(url, autocommit=True)
        app.app.open()
        app.app.schema_manager.apply_schema()
        self._tasks = {name: app.app.tasks[f"{app.__name__}.{name}"] for name in TASKS}

    def enqueue(self, task: str, number: int) -> None:
        self._tasks[task].defer(number=number)

    def enqueue_many(self, count: int) -> None:
        for start in range(0, count, BULK):
            numbers = range(start, min(start + BULK, count))
            self._tasks[NOTHING].batch_defer(*({"number": number} for number in numbers))

    def commands(self) -> list[list[str]]:
        worker = program("procrastinate", "--app=benchmarks.peers.procrastinate.app.app", "worker")
        return [[*worker, "--concurrency=10"]] * 2

    def is_settled(self, count: int) -> bool:
        return self._connection.execute(UNFINISHED).fetchone() is None

    def finished(self) -> int:
        (number,) = self._connection.execute(SUCCEEDED).fetchone() or (0,)
        return int(number)


if __name__ == "__main__":
    serve(Procrastinate)
