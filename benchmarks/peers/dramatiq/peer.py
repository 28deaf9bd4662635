"""dramatiq on Redis."""

from typing import Any

from redis import Redis

from benchmarks.peers.side import NOTHING, Peer, program, serve


class Dramatiq(Peer):
    """With its defaults, which keep no results; `dramatiq:results` keeps them."""

    package = "dramatiq"
    servers = ("redis",)

    def __init__(self, variant: str) -> None:
        super().__init__(variant)
        self.title = "dramatiq"
        self.settings = "defaults"
        self.delivery = "at least once: after a minute another worker takes them over"
        self.concurrency = "2 processes x 8 threads"
        self.results = "kept, in Redis" if variant == "results" else "none"

    def prepare(self) -> None:
        from benchmarks.peers.dramatiq.actors import ACTORS, URL

        self._redis: Any = Redis.from_url(URL)
        self._actors: dict[str, Any] = ACTORS

    def enqueue(self, task: str, number: int) -> None:
        self._actors[task].send(number)

    def enqueue_many(self, count: int) -> None:
        for number in range(count):  # it has nothing for many
            self.enqueue(NOTHING, number)

    def commands(self) -> list[list[str]]:
        options = ["--processes", "2", "--threads", "8", "--skip-logging"]
        return [program("dramatiq", *options, "benchmarks.peers.dramatiq.actors")]

    def is_settled(self, count: int) -> bool:
        """A message is deleted when it is acked."""
        return not self._redis.exists("dramatiq:default.msgs")


if __name__ == "__main__":
    serve(Dramatiq)
