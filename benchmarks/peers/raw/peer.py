"""The hand-written loop: SQL in batches of 100, nothing else. See benchmarks/reference."""

import json
import os
import time
from urllib.parse import urlsplit

import psycopg

from benchmarks.peers.side import Peer, python_module, serve
from benchmarks.reference import Reference, reference_for

LAST_STATE = "SELECT state FROM by_hand ORDER BY id DESC LIMIT 1"
UNFINISHED = "SELECT id FROM by_hand WHERE state <> 'done' LIMIT 1"


def connect() -> Reference:
    """The reference on the database of this run."""
    parts = urlsplit(os.environ["PEER_POSTGRES_URL"])
    entry = {
        "HOST": parts.hostname,
        "PORT": parts.port,
        "USER": parts.username,
        "NAME": parts.path.strip("/"),
    }
    return reference_for("postgres", entry)


def package(task: str, number: int) -> str:
    """Return a package of about the same content as Stoker's."""
    return json.dumps(
        {
            "task": task,
            "queue": "default",
            "priority": 0,
            "enqueued_at": time.time(),
            "options": [3, 3, None, None],
            "args": [number],
            "kwargs": {},
            "metadata": {},
        }
    )


class Raw(Peer):
    """Start one loop, or the number in the variant."""

    def __init__(self, variant: str) -> None:
        super().__init__(variant)
        self._loops = int(variant or 1)
        self.title = "hand-written SQL"
        self.settings = "batches of 100"
        self.delivery = "at least once, if somebody looked after what a crash leaves behind"
        self.concurrency = f"{self._loops} process{'es' if self._loops > 1 else ''}"
        self.results = "kept"

    def prepare(self) -> None:
        self._reference = connect()
        self._connection = psycopg.connect(os.environ["PEER_POSTGRES_URL"], autocommit=True)
        self._reference.create()

    def enqueue(self, task: str, number: int) -> None:
        self._reference.insert(package(task, number))
        self._reference.announce()

    def enqueue_many(self, count: int) -> None:
        self._reference.insert_many(package("nothing", number) for number in range(count))
        self._reference.announce()

    def commands(self) -> list[list[str]]:
        return [python_module("benchmarks.peers.raw.worker")] * self._loops

    def is_settled(self, count: int) -> bool:
        row = self._connection.execute(LAST_STATE).fetchone()
        return row == ("done",) and self._connection.execute(UNFINISHED).fetchone() is None

    def finished(self) -> int:
        return sum(result is not None for result in self._reference.results())


if __name__ == "__main__":
    serve(Raw)
