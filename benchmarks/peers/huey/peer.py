"""huey on PostgreSQL: two worker processes."""

import os

import psycopg

from benchmarks.peers.side import FIRST_LINE, NOTHING, Peer, program, serve


class Huey(Peer):
    """See Peer."""

    package = "huey"
    title = "huey on PostgreSQL"
    settings = "-k process -w 2, woken by LISTEN/NOTIFY"
    delivery = "at most once: a job is deleted when it is claimed"
    concurrency = "2 processes"
    results = "kept"

    def prepare(self) -> None:
        from benchmarks.peers.huey import tasks

        self._tasks = {NOTHING: tasks.nothing, FIRST_LINE: tasks.first_line}
        self._connection = psycopg.connect(os.environ["PEER_POSTGRES_URL"], autocommit=True)

    def enqueue(self, task: str, number: int) -> None:
        self._tasks[task](number)

    def enqueue_many(self, count: int) -> None:
        for number in range(count):  # there is nothing quicker
            self._tasks[NOTHING](number)

    def commands(self) -> list[list[str]]:
        options = ["-k", "process", "-w", "2", "-q"]
        return [program("huey_consumer", "benchmarks.peers.huey.tasks.huey", *options)]

    def is_settled(self, count: int) -> bool:
        waiting = self._connection.execute("SELECT 1 FROM huey_task LIMIT 1").fetchone()
        return waiting is None and self.finished() == count

    def finished(self) -> int:
        (number,) = self._connection.execute("SELECT count(*) FROM huey_kv").fetchone() or (0,)
        return int(number)


if __name__ == "__main__":
    serve(Huey)
