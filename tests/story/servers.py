"""A private database server for a story, and connections to it that stall."""

import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest
from django.core.management import call_command
from django.db import Error, connection

from stoker.exceptions import BrokerUnavailable

from tests.servers.mariadb import PrivateMariadb
from tests.servers.postgres import PrivatePostgres
from tests.story.ledgers import unfinished

CHUNK_BYTES = 1 << 16
NAME = "postgres"
"""Name of the default database on a private server. A new PostgreSQL has it."""


@contextmanager
def on_server(server: PrivatePostgres | PrivateMariadb) -> Iterator[dict[str, str]]:
    """Move the default database to this server. Yield the environment for other processes."""
    usual = dict(connection.settings_dict)
    parts = urlsplit(server.url)
    connection.close()
    connection.settings_dict.update(
        HOST=parts.hostname, PORT=str(parts.port), USER=parts.username, PASSWORD=""
    )
    try:
        if isinstance(server, PrivateMariadb):
            connection.settings_dict.update(NAME="mysql")
            with connection.cursor() as cursor:
                cursor.execute(f"CREATE DATABASE IF NOT EXISTS {NAME} CHARACTER SET utf8mb4")
            connection.close()
        connection.settings_dict.update(NAME=NAME)
        call_command("migrate", verbosity=0)
        yield environment_for(server.url)
    finally:
        connection.close()
        connection.settings_dict.update(usual)


def environment_for(url: str) -> dict[str, str]:
    kind = "MARIADB" if url.startswith("mysql:") else "POSTGRES"
    return {
        f"STOKER_TEST_{kind}_URL": url,
        "STOKER_TEST_DATABASES": json.dumps({"default": NAME}),
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


def is_over() -> bool:
    """Return whether no job waits or runs; False while the database is down."""
    try:
        return not unfinished()
    except (Error, BrokerUnavailable):
        connection.close()
        return False


@contextmanager
def small_disk(folder: Path, mebibytes: int) -> Iterator[Path]:
    """Mount a file system of that size, which only root can do."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m,mode=777", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("only root can mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Write a file until the disk is full."""
    path = folder / "filler"
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return path


def refreshed(result: Any) -> Any:
    """Read the result from the store again, and return it."""
    result.refresh()
    return result


def has_said(text: str, role: str, what: str) -> bool:
    """Return whether a process of this role has logged that."""
    return any(f"[{role}]" in line and what in line for line in text.splitlines())


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
