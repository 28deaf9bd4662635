"""Stoker with its default options and two workers, its jobs in Redis, its results in PostgreSQL."""

import json
import os
from typing import Any

from redis import Redis

from benchmarks.peers.side import serve
from benchmarks.peers.stoker.peer import Stoker


class StokerOnRedis(Stoker):
    """The usual settings of a project."""

    servers = ("redis", "postgres")

    def __init__(self, variant: str) -> None:
        super().__init__(variant)
        self.title = "Stoker on Redis"
        self.results = "kept, in PostgreSQL"

    def prepare(self) -> None:
        url = os.environ["PEER_REDIS_URL"]
        options = json.loads(os.environ.get("STOKER_BENCH_OPTIONS", "{}"))
        os.environ["STOKER_BENCH_OPTIONS"] = json.dumps({**options, "BROKER": url})
        self._redis: Any = Redis.from_url(url)
        super().prepare()

    def is_settled(self, count: int) -> bool:
        """Return whether all jobs are recorded in PostgreSQL and gone from Redis."""
        return not self._redis.exists("{stoker:default}:job") and super().is_settled(count)


if __name__ == "__main__":
    serve(StokerOnRedis)
