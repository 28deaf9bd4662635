"""pgqueuer: claims in batches, run as coroutines of one process."""

import asyncio
import os

import asyncpg
from pgqueuer import AsyncpgDriver, Queries

from benchmarks.peers.side import NOTHING, Peer, python_module, serve

BULK = 1000


class Pgqueuer(Peer):
    """With claims of 100 jobs, or with its defaults (`pgqueuer:default`)."""

    package = "pgqueuer"

    def __init__(self, variant: str) -> None:
        super().__init__(variant)
        self._batch = 10 if variant == "default" else 100
        self.title = f"pgqueuer, batch {self._batch}"
        self.settings = "asyncpg, uvloop" + ("" if variant else ", batch_size=100")
        self.delivery = "at least once"
        self.concurrency = "1 process, coroutines"
        self.results = "a log row without the value"

    def prepare(self) -> None:
        self._runner = asyncio.Runner()
        self._run = self._runner.run
        self._connection = self._run(asyncpg.connect(os.environ["PEER_POSTGRES_URL"]))
        self._queries = Queries(AsyncpgDriver(self._connection))
        self._run(self._queries.install())

    def enqueue(self, task: str, number: int) -> None:
        self._run(self._queries.enqueue(task, str(number).encode()))

    def enqueue_many(self, count: int) -> None:
        self._run(self._enqueue_many(count))

    async def _enqueue_many(self, count: int) -> None:
        for start in range(0, count, BULK):
            numbers = range(start, min(start + BULK, count))
            await self._queries.enqueue(
                [NOTHING] * len(numbers),
                [str(number).encode() for number in numbers],
                [0] * len(numbers),
            )

    def commands(self) -> list[list[str]]:
        return [python_module("benchmarks.peers.pgqueuer.worker", str(self._batch))]

    def is_settled(self, count: int) -> bool:
        return self._run(self._connection.fetchrow("SELECT 1 FROM pgqueuer LIMIT 1")) is None

    def finished(self) -> int:
        query = "SELECT count(*) FROM pgqueuer_log WHERE status = 'successful'"
        return int(self._run(self._connection.fetchval(query)))


if __name__ == "__main__":
    serve(Pgqueuer)
