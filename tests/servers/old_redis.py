"""A server that answers as Redis 5: it knows no HELLO, and no names of clients."""

import socket
import threading
from contextlib import suppress

from tests.servers.silent import SilentServer


class OldServer(SilentServer):
    """A context manager. Scripts return 1."""

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._answer, args=[client], daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        with suppress(OSError), client, client.makefile("rb") as lines:
            while head := lines.readline():
                words = []
                for _ in range(int(head[1:])):
                    length = int(lines.readline()[1:])
                    words.append(lines.read(length + 2)[:-2])
                client.sendall(ANSWERS.get(words[0].upper(), UNKNOWN))


ANSWERS = {b"SELECT": b"+OK\r\n", b"PING": b"+PONG\r\n", b"EVALSHA": b":1\r\n"}
UNKNOWN = b"-ERR unknown command\r\n"
