"""SAQ on Redis."""

import asyncio
import os
from typing import Any

from redis import Redis

from benchmarks.peers.side import NOTHING, Peer, program, serve

AT_ONCE = 20
OPTIONS = {"retries": 3, "ttl": 86400}


class Saq(Peer):
    """With retries; without them it gives up the jobs of a killed worker."""

    package = "saq"
    servers = ("redis",)

    def __init__(self, variant: str) -> None:
        super().__init__(variant)
        self.title = "SAQ"
        self.settings = "retries 3, results kept for a day"
        self.delivery = "at least once: swept once a minute when they are past their time-out"
        self.concurrency = "2 processes x 10 coroutines"
        self.results = "kept, in Redis"

    def prepare(self) -> None:
        from benchmarks.peers.saq.worker import queue

        self._queue: Any = queue
        self._redis: Any = Redis.from_url(os.environ["PEER_REDIS_URL"])
        self._runner = asyncio.Runner()
        self._run = self._runner.run

    def enqueue(self, task: str, number: int) -> None:
        self._run(self._queue.enqueue(task, number=number, **OPTIONS))

    def enqueue_many(self, count: int) -> None:
        self._run(self._enqueue_many(count))

    async def _enqueue_many(self, count: int) -> None:
        """Enqueue singly, with as many calls at a time as SAQ allows, because it has no bulk
        enqueue."""
        for start in range(0, count, AT_ONCE):
            numbers = range(start, min(start + AT_ONCE, count))
            one = self._queue.enqueue
            await asyncio.gather(*(one(NOTHING, number=number, **OPTIONS) for number in numbers))

    def commands(self) -> list[list[str]]:
        return [program("saq", "benchmarks.peers.saq.worker.settings", "--workers", "2", "--quiet")]

    def is_settled(self, count: int) -> bool:
        return not self._redis.exists("saq:default:incomplete")


if __name__ == "__main__":
    serve(Saq)
