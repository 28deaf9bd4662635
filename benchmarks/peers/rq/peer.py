"""RQ: a fork for every job, or none (`rq:simple`)."""

import os
from typing import Any

from redis import Redis
from rq import Queue

from benchmarks.peers.rq.tasks import first_line, nothing
from benchmarks.peers.side import Peer, program, serve

TASKS = {"nothing": nothing, "first_line": first_line}
BULK = 1000
KEPT_SECONDS = 86400


class Rq(Peer):
    """Its default worker forks; `rq:simple` is the one that does not."""

    package = "rq"
    servers = ("redis",)

    def __init__(self, variant: str) -> None:
        super().__init__(variant)
        self._kind = "SimpleWorker" if variant == "simple" else "Worker"
        self.title = f"RQ, {self._kind}"
        self.settings = "log level ERROR, results kept for a day"
        self.delivery = "at most once: a killed worker's job is marked as failed"
        self.concurrency = "2 processes" + ("" if variant else ", a fork for each job")
        self.results = "kept, in Redis"

    def prepare(self) -> None:
        self._redis: Any = Redis.from_url(os.environ["PEER_REDIS_URL"])
        self._queue: Any = Queue(connection=self._redis)

    def enqueue(self, task: str, number: int) -> None:
        self._queue.enqueue(TASKS[task], number, result_ttl=KEPT_SECONDS)

    def enqueue_many(self, count: int) -> None:
        prepare: Any = Queue.prepare_data
        for start in range(0, count, BULK):
            numbers = range(start, min(start + BULK, count))
            self._queue.enqueue_many(
                [prepare(nothing, (number,), result_ttl=KEPT_SECONDS) for number in numbers]
            )

    def commands(self) -> list[list[str]]:
        options = ["--url", os.environ["PEER_REDIS_URL"], "--logging_level", "ERROR"]
        command = program("rq", "worker", *options, "--worker-class", f"rq.worker.{self._kind}")
        return [command, command]

    def is_settled(self, count: int) -> bool:
        return bool(self.finished() >= count)

    def finished(self) -> int:
        return int(self._redis.zcard("rq:finished:default"))


if __name__ == "__main__":
    serve(Rq)
