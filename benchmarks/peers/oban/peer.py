"""Oban for Python: one process with a hundred coroutines."""

import asyncio
import os

import uvloop

from benchmarks.peers.side import FIRST_LINE, NOTHING, Peer, program, serve

BULK = 1000
UNFINISHED = """
    SELECT 1 FROM oban_jobs WHERE state IN ('available', 'executing', 'scheduled', 'retryable')
    LIMIT 1
"""
SUCCEEDED = "SELECT count(*) FROM oban_jobs WHERE state = 'completed'"


class OfOban(Peer):
    """See Peer."""

    package = "oban"
    title = "Oban for Python"
    settings = "--queues default:100"
    delivery = "at least once; the report of an older attempt is refused"
    concurrency = "1 process x 100 coroutines"
    results = "a row without the value"

    def prepare(self) -> None:
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._runner.run(self._prepare())

    async def _prepare(self) -> None:
        import psycopg
        from oban import Oban
        from oban.schema import install

        from benchmarks.peers.oban import tasks

        url = os.environ["PEER_POSTGRES_URL"]
        self._pool = await Oban.create_pool(url)
        await install(self._pool)
        self._oban = Oban(pool=self._pool)  # without queues it only enqueues
        self._tasks = {NOTHING: tasks.nothing, FIRST_LINE: tasks.first_line}
        self._connection = psycopg.connect(url, autocommit=True)

    def enqueue(self, task: str, number: int) -> None:
        self._runner.run(self._oban.enqueue(self._tasks[task].new(number)))

    def enqueue_many(self, count: int) -> None:
        self._runner.run(self._enqueue_many(count))

    async def _enqueue_many(self, count: int) -> None:
        new = self._tasks[NOTHING].new
        for start in range(0, count, BULK):
            numbers = range(start, min(start + BULK, count))
            await self._oban.enqueue_many(*(new(number) for number in numbers))

    def commands(self) -> list[list[str]]:
        options = [f"--dsn={os.environ['PEER_POSTGRES_URL']}", "--queues=default:100"]
        options += ["--cron-modules=benchmarks.peers.oban.tasks", "--log-level=warning"]
        return [program("oban", "start", *options)]

    def is_settled(self, count: int) -> bool:
        return self._connection.execute(UNFINISHED).fetchone() is None

    def finished(self) -> int:
        (number,) = self._connection.execute(SUCCEEDED).fetchone() or (0,)
        return int(number)


if __name__ == "__main__":
    serve(OfOban)
