"""A private database server for a story, and connections to it that stall."""

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest
from django.core.management import call_command
from django.db import connection

from tests.servers.postgres import PrivatePostgres

CHUNK_BYTES = 1 << 16


@contextmanager
def on_server(server: PrivatePostgres) -> Iterator[dict[str, str]]:
    """Move the default database to this server. Yield the environment for other processes."""
    usual = dict(connection.settings_dict)
    parts = urlsplit(server.url)
    connection.close()
    connection.settings_dict.update(
        HOST=parts.hostname, PORT=str(parts.port), USER="postgres", PASSWORD="", NAME="postgres"
    )
    try:
        call_command("migrate", verbosity=0)
        yield environment_for(server.url)
    finally:
        connection.close()
        connection.settings_dict.update(usual)


def environment_for(url: str) -> dict[str, str]:
    return {
        "STOKER_TEST_POSTGRES_URL": url,
        "STOKER_TEST_DATABASES": json.dumps({"default": "postgres"}),
    }


@pytest.fixture
def private_database(
    private_postgres: PrivatePostgres, monkeypatch: pytest.MonkeyPatch
) -> Iterator[PrivatePostgres]:
    """Yield a private server that this test and its processes use as default database."""
    with on_server(private_postgres) as environment:
        for name, value in environment.items():
            monkeypatch.setitem(os.environ, name, value)
        yield private_postgres


class Line:
    """A proxy to a server that can stop forwarding data without closing connections."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._server = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.url = urlunsplit(parts._replace(netloc=f"postgres@127.0.0.1:{port}"))
        self._is_open = threading.Event()
        self._is_open.set()
        self._ends: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def hold(self) -> None:
        self._is_open.clear()

    def release(self) -> None:
        self._is_open.set()

    def close(self) -> None:
        """Close all connections."""
        self._is_open.set()
        self._listener.close()
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        for thread in self._threads:
            thread.join(10)

    def _start(self, function: Any, *arguments: Any) -> None:
        thread = threading.Thread(target=function, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._is_open.wait()
                server = socket.create_connection(self._server)
                self._ends += [client, server]
                self._start(self._carry, client, server)
                self._start(self._carry, server, client)

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(CHUNK_BYTES):
                self._is_open.wait()
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)
