"""A private Redis for a story, and connections to it that break."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from django.conf import settings
from django.test import override_settings

from tests.servers.private import NotInstalledError
from tests.servers.redis import PrivateRedis

CHUNK_BYTES = 1 << 16
URL = "STOKER_TEST_REDIS_URL"


@pytest.fixture
def durable_redis() -> Iterator[PrivateRedis]:
    """A Redis that writes to disk before it answers."""
    try:
        with PrivateRedis(is_durable=True) as server:
            yield server
    except NotInstalledError as missing:
        pytest.skip(f"private redis: {missing}")


@contextmanager
def broker_at(url: str, variable: str = URL, **more: Any) -> Iterator[None]:
    """Use the broker at this URL in this process and those that it starts, with more options in
    this process."""
    (tasks,) = settings.TASKS.values()
    options = {**tasks["OPTIONS"], "BROKER": url, **more}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, variable, url)
        with override_settings(TASKS={"default": {**tasks, "OPTIONS": options}}):
            yield


class BrokenLine:
    """A proxy to a server that can cut, hold and lose data."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._lock = threading.Lock()
        self._ends: set[socket.socket] = set()
        self._is_open = threading.Event()
        self._is_open.set()
        self._replies_to_lose = 0
        self.lost_replies = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Break all connections."""
        with self._lock:
            ends = list(self._ends)
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def hold(self) -> None:
        """Stop forwarding data without closing the connections."""
        self._is_open.clear()

    def release(self) -> None:
        self._is_open.set()

    def lose_replies(self, count: int = 1) -> None:
        """Break the connection instead of forwarding the next replies; the server has acted."""
        self._replies_to_lose = count

    def lead_to(self, port: int) -> None:
        """Connect to another server from now on."""
        self._port = port
        self.cut()

    def close(self) -> None:
        self.release()
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=[client], daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self._port))
        except OSError:
            client.close()
            return
        with self._lock:
            self._ends |= {client, server}
        there = threading.Thread(target=self._carry, args=[client, server, False], daemon=True)
        there.start()
        self._carry(server, client, True)
        there.join()
        with self._lock:
            self._ends -= {client, server}
        client.close()
        server.close()

    def _carry(self, source: socket.socket, target: socket.socket, is_back: bool) -> None:
        with suppress(OSError):
            while data := source.recv(CHUNK_BYTES):
                self._is_open.wait()
                if is_back and self._loses():
                    break
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _loses(self) -> bool:
        with self._lock:
            if not self._replies_to_lose:
                return False
            self._replies_to_lose -= 1
            self.lost_replies += 1
            return True
