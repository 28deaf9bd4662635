"""taskiq on Redis: a stream with acks, or a list (`taskiq:list`)."""

import asyncio
import os
from typing import Any

from redis import Redis

from benchmarks.peers.side import NOTHING, Peer, program, serve

AT_ONCE = 100


class Taskiq(Peer):
    """`taskiq:list` pops from a list; `taskiq:unkept` keeps no results."""

    package = "taskiq"
    servers = ("redis",)

    def __init__(self, variant: str) -> None:
        super().__init__(variant)
        self._is_list = variant == "list"
        self.title = f"taskiq, {'list' if self._is_list else 'stream'}"
        self.settings = "async tasks, log level ERROR"
        self.delivery = (
            "at most once: a killed worker's jobs are lost"
            if self._is_list
            else "at least once: after 10 minutes another worker takes them over"
        )
        self.concurrency = "2 processes x 100 coroutines"
        self.results = "none" if variant == "unkept" else "kept, in Redis"

    def prepare(self) -> None:
        from benchmarks.peers.taskiq.worker import TASKS, URL, broker

        self._redis: Any = Redis.from_url(URL)
        self._tasks: dict[str, Any] = TASKS
        self._runner = asyncio.Runner()
        self._run = self._runner.run
        self._run(broker.startup())

    def enqueue(self, task: str, number: int) -> None:
        self._run(self._tasks[task].kiq(number))

    def enqueue_many(self, count: int) -> None:
        self._run(self._enqueue_many(count))

    async def _enqueue_many(self, count: int) -> None:
        """Enqueue several calls at a time, because it has no bulk enqueue."""
        task = self._tasks[NOTHING]
        for start in range(0, count, AT_ONCE):
            numbers = range(start, min(start + AT_ONCE, count))
            await asyncio.gather(*(task.kiq(number) for number in numbers))

    def commands(self) -> list[list[str]]:
        options = ["--workers", "2", "--log-level", "ERROR"]
        return [program("taskiq", "worker", *options, "benchmarks.peers.taskiq.worker:broker")]

    def is_settled(self, count: int) -> bool:
        if self._is_list:
            return self.finished() == count
        (group,) = self._redis.xinfo_groups("taskiq")
        return bool((group["entries-read"] or 0) >= count and not group["pending"])

    def finished(self) -> int | None:
        """Each result is a key beside the stream; an empty list does not exist."""
        if self.variant == "unkept":
            return None
        others = ("taskiq", "autoclaim:taskiq:taskiq")
        return int(self._redis.dbsize() - self._redis.exists(*others))


if __name__ == "__main__":
    os.environ.setdefault("PEER_VARIANT", "")
    serve(Taskiq)
