"""The hand-written loop on Redis: two scripts, in batches. See benchmarks/reference/redis.py."""

import os
from typing import Any

from redis import Redis

from benchmarks.peers.raw.peer import package
from benchmarks.peers.side import Peer, python_module, serve
from benchmarks.reference.redis import RedisReference


class RawRedis(Peer):
    """One loop, or the number in the variant."""

    servers = ("redis",)

    def __init__(self, variant: str) -> None:
        super().__init__(variant)
        self._loops = int(variant or 1)
        self.title = "hand-written Redis scripts"
        self.settings = "batches of 100"
        self.delivery = "at least once, if somebody looked after what a crash leaves behind"
        self.concurrency = f"{self._loops} process{'es' if self._loops > 1 else ''}"
        self.results = "kept, in Redis"

    def prepare(self) -> None:
        url = os.environ["PEER_REDIS_URL"]
        self._reference = RedisReference(url)
        self._redis: Any = Redis.from_url(url)

    def enqueue(self, task: str, number: int) -> None:
        self._reference.insert_many([package(task, number)])

    def enqueue_many(self, count: int) -> None:
        self._reference.insert_many(package("nothing", number) for number in range(count))

    def commands(self) -> list[list[str]]:
        return [python_module("benchmarks.peers.raw_redis.worker")] * self._loops

    def is_settled(self, count: int) -> bool:
        return self.finished() == count

    def finished(self) -> int:
        return int(self._redis.hlen("{by-hand}:done"))


if __name__ == "__main__":
    serve(RawRedis)
