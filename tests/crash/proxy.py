"""A TCP proxy that can cut, silence and slow down connections, and lose replies."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import threading
import time
from typing import Final

CHUNK_BYTES = 1 << 16
RESET = struct.pack("ii", 1, 0)

READY_FOR_QUERY: Final = re.compile(rb"Z\x00\x00\x00\x05([ITE])")
"""PostgreSQL reports after each reply whether a transaction is open."""
BEGINS: Final = (b"set autocommit=0", b"set autocommit = 0", b"begin", b"start transaction")
ENDS: Final = (b"commit", b"rollback", b"set autocommit=1", b"set autocommit = 1")


class Connection:
    """One connection through the proxy: both ends and its faults."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.is_lost = False
        """No more data is forwarded, and neither end learns that the other has closed."""
        self.is_doomed = False
        """The connection is cut instead of forwarding the next reply."""
        self.is_in_transaction = False

    def close(self, *, by_reset: bool = False) -> None:
        """Close both ends."""
        for end in (self.client, self.server):
            _close(end, by_reset)

    def observe(self, data: bytes, *, is_request: bool) -> None:
        """Keep track of whether a transaction is open, on PostgreSQL and MariaDB."""
        if not is_request:
            states = READY_FOR_QUERY.findall(data[-64:])
            if states:
                self.is_in_transaction = states[-1] != b"I"
            return
        if len(data) < 64:
            words = data.lower()
            if any(word in words for word in BEGINS):
                self.is_in_transaction = True
            elif any(word in words for word in ENDS):
                self.is_in_transaction = False


class Proxy:
    """Forwards `port` to a server on loopback. Faults last until they are healed."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=100)
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._connections: set[Connection] = set()
        self._lost: list[Connection] = []
        self._waiting: list[socket.socket] = []
        self._refuses = False
        self._swallows = False
        self._delay_seconds = 0.0
        self._commits_to_lose = 0
        self._commits_to_stop = 0
        self._commits_to_silence = 0
        self._answers_to_lose = 0
        self.accepted = 0
        """The total number of connections."""
        self.losses = 0
        """The total number of lost replies and stopped requests."""
        threading.Thread(target=self._accept, daemon=True).start()

    # Faults.

    def cut(self, *, by_reset: bool = False) -> int:
        """Close all connections. Return how many."""
        gone = self._take_all()
        for connection in gone:
            connection.close(by_reset=by_reset)
        return len(gone)

    def lose_silently(self) -> int:
        """Silence all connections; new ones work. This is like a host that loses its power or its
        address: the server does not notice. Return how many."""
        gone = self._take_all()
        for connection in gone:
            connection.is_lost = True
        self._lost += gone
        return len(gone)

    def lose_in_transaction(self, patience_seconds: float) -> int:
        """Silence one connection as soon as one is inside a transaction. Return how many."""
        until = time.monotonic() + patience_seconds
        while time.monotonic() < until:
            with self._lock:
                open_ones = [one for one in self._connections if one.is_in_transaction]
            connection = open_ones[0] if open_ones else None
            if connection is not None:
                self._lose(connection)
                return 1
            time.sleep(0.0002)
        return 0

    def partition(self) -> int:
        """Silence all connections and all new ones."""
        self._swallows = True
        return self.lose_silently()

    def refuse(self) -> int:
        """Reset all connections and all new ones."""
        self._refuses = True
        return self.cut(by_reset=True)

    def delay(self, seconds: float) -> None:
        """Delay all data by this many seconds."""
        self._delay_seconds = seconds

    def lose_commits(self, count: int) -> None:
        """Cut the connection instead of forwarding the replies to the next COMMITs. The server has
        committed, but the client does not know it."""
        self._commits_to_lose = count

    def stop_commits(self, count: int) -> None:
        """Cut the connection instead of forwarding the next COMMITs."""
        self._commits_to_stop = count

    def silence_commits(self, count: int) -> None:
        """Silence the connection instead of forwarding the next COMMITs. On the server the
        transaction stays open with all its locks."""
        self._commits_to_silence = count

    def lose_answers(self, count: int) -> None:
        """Cut the connection instead of forwarding the next replies of any kind."""
        self._answers_to_lose = count

    def heal(self) -> None:
        """End all faults, except that silenced connections stay silent."""
        self._refuses = self._swallows = False
        self._delay_seconds = 0.0
        self._commits_to_lose = self._commits_to_stop = self._answers_to_lose = 0
        self._commits_to_silence = 0
        waiting, self._waiting = self._waiting, []
        for client in waiting:
            _close(client, by_reset=True)

    def close_lost_clients(self) -> None:
        """Close the clients' ends of silenced connections, but not the server's."""
        for connection in list(self._lost):
            _close(connection.client, by_reset=True)

    def close_lost(self) -> None:
        """Close both ends of silenced connections."""
        lost, self._lost = self._lost, []
        for connection in lost:
            connection.close()

    def close(self) -> None:
        """Close everything."""
        self._listener.close()
        self.heal()
        self.cut()
        self.close_lost()

    # Implementation.

    def _lose(self, connection: Connection) -> None:
        with self._lock:
            connection.is_lost = True
            self._connections.discard(connection)
            self._lost.append(connection)

    def _take_all(self) -> list[Connection]:
        with self._lock:
            taken = list(self._connections)
            self._connections.clear()
        return taken

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.accepted += 1
                if self._refuses:
                    _close(client, by_reset=True)
                elif self._swallows:
                    self._waiting.append(client)
                else:
                    threading.Thread(target=self._serve, args=[client], daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self._server_port), timeout=5)
        except OSError:
            _close(client, by_reset=True)
            return
        for end in (client, server):
            end.settimeout(None)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(client, server)
        with self._lock:
            self._connections.add(connection)
        back = threading.Thread(target=self._carry_answers, args=[connection], daemon=True)
        back.start()
        self._carry_requests(connection)
        back.join()
        with self._lock:
            self._connections.discard(connection)

    def _carry_requests(self, connection: Connection) -> None:
        with contextlib.suppress(OSError):
            while data := connection.client.recv(CHUNK_BYTES):
                if connection.is_lost:
                    continue
                self._pause()
                connection.observe(data, is_request=True)
                if _is_commit(data) and self._takes("_commits_to_silence"):
                    self._lose(connection)
                    continue
                if _is_commit(data):
                    if self._takes("_commits_to_stop"):
                        break
                    connection.is_doomed = self._takes("_commits_to_lose")
                connection.server.sendall(data)
        if not connection.is_lost:
            connection.close()

    def _carry_answers(self, connection: Connection) -> None:
        with contextlib.suppress(OSError):
            while data := connection.server.recv(CHUNK_BYTES):
                if connection.is_lost:
                    continue
                self._pause()
                connection.observe(data, is_request=False)
                if connection.is_doomed or self._takes("_answers_to_lose"):
                    break
                connection.client.sendall(data)
        if not connection.is_lost:
            connection.close()

    def _pause(self) -> None:
        if self._delay_seconds:
            time.sleep(self._delay_seconds)

    def _takes(self, name: str) -> bool:
        if not getattr(self, name):
            return False
        with self._lock:
            left = getattr(self, name)
            setattr(self, name, max(0, left - 1))
            self.losses += bool(left)
        return bool(left)


def _is_commit(data: bytes) -> bool:
    return len(data) < 4096 and b"commit" in data.lower()


def _close(end: socket.socket, by_reset: bool = False) -> None:
    with contextlib.suppress(OSError):
        if by_reset:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        else:
            end.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(OSError):
        # A recv() in another thread keeps the socket open, so shut it down as well.
        end.shutdown(socket.SHUT_RDWR)
    end.close()
