"""A server that accepts connections and never answers."""

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self


class SilentServer:
    """A context manager; `accepted` counts the connections."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._connections: list[socket.socket] = []

    @property
    def accepted(self) -> int:
        """The number of connections so far."""
        return len(self._connections)

    def __enter__(self) -> Self:
        """Begin to accept."""
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close everything."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._connections:
            connection.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._connections.append(connection)
