"""How a cluster on MongoDB learns at once that jobs came: from a change stream, where the server is
a member of a replica set. Elsewhere there is none, and the cluster polls, which is always correct.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pymongo.errors import PyMongoError

from .wake import NoWake, Wake

RECONNECT_SECONDS = 2.0
WAIT_MS = 500
"""How long the server keeps a question open; the longest that ``close`` waits."""
CAME = [
    {"$match": {"operationType": {"$in": ["insert", "update", "replace"]}}},
    {"$match": {"fullDocument.state": {"$in": ["ready", "deferred"]}}},
    {"$project": {"_id": 1, "operationType": 1}},
]
"""Of updates too: jobs that are released. What is leased by now is not told of."""


def open_mongodb_wake(connect: Callable[[], tuple[Any, Any]]) -> Wake:
    """Something to sleep on, or nothing where the server has no change streams.

    Args:
        connect: opens a client, and gives it and the jobs.
    """
    try:
        client, jobs = connect()
        with suppress(PyMongoError):
            if "setName" in client.admin.command("hello") or client.is_mongos:
                return MongodbWake(client, jobs)
        client.close()
    except PyMongoError:
        pass
    return NoWake()


class MongodbWake(Wake):
    """A thread that listens on a connection of its own, and writes to a pipe."""

    def __init__(self, client: Any, jobs: Any) -> None:
        self._client = client
        self._jobs = jobs
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._is_listening = threading.Event()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="stoker-wake", daemon=True)
        self._thread.start()
        self._is_listening.wait(RECONNECT_SECONDS)

    def fileno(self) -> int | None:
        return None if self._is_over.is_set() else self._read

    def is_due(self) -> bool:
        if self._is_over.is_set():
            return False
        with suppress(BlockingIOError):
            return bool(os.read(self._read, 4096))
        return False

    def close(self) -> None:
        if self._is_over.is_set():
            return
        self._is_over.set()
        self._client.close()
        self._thread.join()
        os.close(self._read)
        os.close(self._write)

    def _listen(self) -> None:
        while not self._is_over.is_set():
            with suppress(PyMongoError):
                self._follow()
            self._is_over.wait(RECONNECT_SECONDS)

    def _follow(self) -> None:
        options = {"full_document": "updateLookup", "max_await_time_ms": WAIT_MS}
        with self._jobs.watch(CAME, **options) as changes:
            if self._is_listening.is_set():
                self._call()  # something may have come between two connections
            self._is_listening.set()
            while changes.alive and not self._is_over.is_set():
                if changes.try_next() is not None:
                    self._call()

    def _call(self) -> None:
        with suppress(BlockingIOError):
            os.write(self._write, b"!")
