"""A TCP proxy in front of a server. It can lose the server's next answer or all connections, delay
everything, or lose a client so that the server does not notice, or the other way round."""

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self


class Proxy:
    """A context manager: `port` leads to the server until a fault is asked for."""

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._after: bytes | None = None
        self._dying: dict[int, bytes] = {}
        self._left_open: list[socket.socket] = []
        self._silent: set[int] = set()
        self.lost = threading.Event()
        self.abandoned = threading.Event()
        self._is_open = threading.Event()
        self._is_open.set()

    @property
    def client_ports(self) -> list[int]:
        """The ports of the connected clients, the newest last."""
        return [client.getpeername()[1] for client, _ in self._pairs]

    def lose_answer_to(self, what: bytes) -> None:
        """Let the next request with these bytes reach the server, and cut the connection after its
        answer: the server acted, but the client does not know it."""
        self.lost.clear()
        self._after = what

    def lose_client(self, client_port: int, *, before: bytes) -> None:
        """Lose this client as in a power cut, just before its next request with these bytes would
        reach the server. The client's end is closed; the server's end stays open, and nothing comes
        any more. Sets `abandoned` when that has happened.

        Args:
            client_port: from which the client connected.
            before: what the request has in it: COMMIT, say.
        """
        self.abandoned.clear()
        self._dying[client_port] = before

    def lead_to(self, host: str, port: int, *, is_cut: bool = True) -> None:
        """Connect to another server from now on, and cut the connections to the old one.

        Args:
            host: of the other server.
            port: of the other server.
            is_cut: if not, the connections to the old server stay.
        """
        self._server = (host, port)
        if is_cut:
            self.cut()

    def hold(self) -> None:
        """Pass nothing on until `release`, without closing connections."""
        self._is_open.clear()

    def release(self) -> None:
        """Pass on what was held."""
        self._is_open.set()

    def silence(self, client_port: int) -> None:
        """Pass nothing on between this client and the server any more. What the client sends is
        still acknowledged. New connections work."""
        self._silent.add(client_port)

    def cut(self) -> None:
        """Cut all connections."""
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            _close(pair)

    def __enter__(self) -> Self:
        """Begin to listen."""
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Cut everything."""
        self._listener.close()
        self.release()
        self.cut()
        for end in self._left_open:
            end.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(self._server)
                except OSError:  # it is down
                    client.close()
                    continue
                pair = (client, server)
                self._pairs.append(pair)
                doomed = threading.Event()
                for way in ((client, server, True), (server, client, False)):
                    args = (*way, doomed, pair)
                    threading.Thread(target=self._carry, args=args, daemon=True).start()

    def _carry(
        self,
        source: socket.socket,
        target: socket.socket,
        is_request: bool,
        doomed: threading.Event,
        pair: tuple[socket.socket, socket.socket],
    ) -> None:
        client_port = 0
        with suppress(OSError):  # also if the client is gone already
            client_port = pair[0].getpeername()[1]
            while data := source.recv(2**16):
                self._is_open.wait()
                if client_port in self._silent:
                    continue
                if is_request and (before := self._dying.get(client_port)) and before in data:
                    del self._dying[client_port]
                    self._abandon(pair)
                    return
                if is_request and self._after is not None and self._after in data:
                    self._after = None
                    doomed.set()
                elif not is_request and doomed.is_set():
                    self.lost.set()
                    break
                target.sendall(data)
        if is_request or client_port not in self._silent:
            _close(pair)

    def _abandon(self, pair: tuple[socket.socket, socket.socket]) -> None:
        client, server = pair
        self._left_open.append(server)
        self._pairs.remove(pair)
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)
        client.close()
        self.abandoned.set()


def _close(pair: tuple[socket.socket, socket.socket]) -> None:
    for one in pair:
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()
