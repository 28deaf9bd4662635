"""Celery on Redis, with its prefork pool."""

from typing import Any

from redis import Redis

from benchmarks.peers.side import NOTHING, Peer, program, serve

DELIVERY = {
    "": "at most once: a job that runs in a killed worker is lost",
    "late": "at least once: after an hour, or at once if only the pool process was killed",
}


class Celery(Peer):
    """Early acks, as by default; late acks (`celery:late`); early acks with results
    (`celery:results`)."""

    package = "celery"
    servers = ("redis",)

    def __init__(self, variant: str) -> None:
        super().__init__(variant)
        self.title = f"Celery, {'late' if variant == 'late' else 'early'} acks"
        late = ", acks_late, reject_on_worker_lost" if variant == "late" else ""
        self.settings = f"prefetch multiplier 100, no gossip, mingle, heartbeat{late}"
        self.delivery = DELIVERY["late" if variant == "late" else ""]
        self.concurrency = "2 processes, prefork, and one that feeds them"
        self.results = "kept, in Redis" if variant == "results" else "none"

    def prepare(self) -> None:
        from benchmarks.peers.celery.app import TASKS, URL

        self._redis: Any = Redis.from_url(URL)
        self._tasks: dict[str, Any] = TASKS

    def enqueue(self, task: str, number: int) -> None:
        self._tasks[task].delay(number)

    def enqueue_many(self, count: int) -> None:
        for number in range(count):  # it has nothing for many
            self.enqueue(NOTHING, number)

    def commands(self) -> list[list[str]]:
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        options = ["--concurrency", "2", "--loglevel", "ERROR", *quiet]
        return [program("celery", "-A", "benchmarks.peers.celery.app", "worker", *options)]

    def is_settled(self, count: int) -> bool:
        """With early acks, each process may still run one acked job."""
        if self.variant == "results":
            return self.finished() == count
        return not self._redis.exists("celery", "unacked")

    def finished(self) -> int | None:
        if self.variant != "results":
            return None
        return sum(1 for key in self._redis.keys("celery-task-meta-*") if key)


if __name__ == "__main__":
    serve(Celery)
