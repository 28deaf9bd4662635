"""A stand-in for Disque: neither Debian nor PyPI has a package with the server."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import ClassVar

from tests.servers.handshake import greet_redis
from tests.servers.private import ROOT, PrivateServer, free_port


class PrivateDisque(PrivateServer):
    """One node of the stand-in, alone or with others."""

    name = "disque"
    refuses_root: ClassVar[bool] = False

    def __init__(self, port: int | None = None, others: Sequence[int] = ()) -> None:
        super().__init__()
        self._port = port
        self._others = others

    @property
    def url(self) -> str:
        """The URL for tests."""
        return f"disque://127.0.0.1:{self.port}"

    def install(self) -> None:
        """Do nothing: it keeps no files."""

    def command(self) -> list[str]:
        """Return the command: our own program, on loopback, found from any folder."""
        self.port = self._port or self.port
        program = f"import sys; sys.path.insert(0, {os.fspath(ROOT)!r}); "
        program += "from tests.servers.disque_wire import main; "
        program += f"main({self.port}, {list(self._others)!r})"
        return [sys.executable, "-c", program]

    def answers(self) -> bool:
        """Tell whether it answers."""
        try:
            greet_redis(self.port)
        except OSError:
            return False
        return True


@contextmanager
def disque_nodes(count: int) -> Iterator[list[PrivateDisque]]:
    """Run this many connected nodes."""
    ports = [free_port() for _ in range(count)]
    with ExitStack() as stack:
        yield [
            stack.enter_context(PrivateDisque(port, [one for one in ports if one != port]))
            for port in ports
        ]


def url_of(nodes: Sequence[PrivateDisque], options: str = "") -> str:
    """Return a URL with all nodes."""
    hosts = ",".join(f"127.0.0.1:{node.port}" for node in nodes)
    return f"disque://{hosts}{options}"
