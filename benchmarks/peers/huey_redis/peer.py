"""huey on Redis: two processes that pop from a list."""

from typing import Any

from benchmarks.peers.side import NOTHING, Peer, program, serve


class Huey(Peer):
    """With processes, as its documentation says for tasks that compute."""

    package = "huey"
    servers = ("redis",)

    def __init__(self, variant: str) -> None:
        super().__init__(variant)
        self.title = "huey"
        self.settings = "RedisHuey, process workers, no periodic tasks"
        self.delivery = "at most once: a killed worker's job is lost"
        self.concurrency = "2 processes"
        self.results = "kept, in Redis"

    def prepare(self) -> None:
        from benchmarks.peers.huey_redis.worker import TASKS, huey

        self._huey: Any = huey
        self._tasks: dict[str, Any] = TASKS

    def enqueue(self, task: str, number: int) -> None:
        self._tasks[task](number)

    def enqueue_many(self, count: int) -> None:
        for number in range(count):  # it has nothing for many
            self.enqueue(NOTHING, number)

    def commands(self) -> list[list[str]]:
        options = ["--workers", "2", "--worker-type", "process", "--no-periodic", "--quiet"]
        return [program("huey_consumer", *options, "benchmarks.peers.huey_redis.worker.huey")]

    def is_settled(self, count: int) -> bool:
        return bool(self._huey.result_count() >= count)

    def finished(self) -> int:
        return int(self._huey.result_count())


if __name__ == "__main__":
    serve(Huey)
