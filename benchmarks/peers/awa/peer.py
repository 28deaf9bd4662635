"""awa-pg: a core in Rust, which runs Python's coroutines in one process."""

import asyncio
import os

import awa

from benchmarks.peers.awa.jobs import QUEUE, FirstLine, Nothing, RunCount
from benchmarks.peers.awa.worker import CONCURRENCY, POLL_MS
from benchmarks.peers.side import FIRST_LINE, NOTHING, Peer, python_module, serve

BULK = 1000
TASKS = {NOTHING: Nothing, FIRST_LINE: FirstLine}


class Awa(Peer):
    """With its queue storage, or the older tables (`awa:canonical`)."""

    package = "awa-pg"
    delivery = "at least once, fenced"
    concurrency = f"1 process x {CONCURRENCY} coroutines"

    def __init__(self, variant: str) -> None:
        super().__init__(variant)
        self._is_canonical = variant == "canonical"
        storage = "canonical tables" if self._is_canonical else "queue storage"
        self.title = f"awa, {storage}"
        self.settings = f"{storage}, poll_interval_ms={POLL_MS}"
        self.results = "a row without the value" if self._is_canonical else "none after seconds"

    def prepare(self) -> None:
        self._runner = asyncio.Runner()
        self._runner.run(self._prepare())
        self._count = RunCount()

    async def _prepare(self) -> None:
        self._client = awa.AsyncClient(os.environ["PEER_POSTGRES_URL"])
        await self._client.migrate()
        if not self._is_canonical:
            await self._client.install_queue_storage()

    def enqueue(self, task: str, number: int) -> None:
        self._runner.run(self._enqueue(task, number))

    async def _enqueue(self, task: str, number: int) -> None:
        await self._client.insert(TASKS[task](number), queue=QUEUE)

    def enqueue_many(self, count: int) -> None:
        self._runner.run(self._enqueue_many(count))

    async def _enqueue_many(self, count: int) -> None:
        many = self._client
        insert = many.insert_many_copy if self._is_canonical else many.enqueue_many_copy
        for start in range(0, count, BULK):
            numbers = range(start, min(start + BULK, count))
            await insert([Nothing(number) for number in numbers], queue=QUEUE)

    def commands(self) -> list[list[str]]:
        return [python_module("benchmarks.peers.awa.worker")]

    def is_settled(self, count: int) -> bool:
        return self._count.value() >= count and self._runner.run(self._is_empty())

    async def _is_empty(self) -> bool:
        stats = await self._client.queue_stats()
        return not any(one.total_queued or one.running for one in stats)


if __name__ == "__main__":
    serve(Awa)
