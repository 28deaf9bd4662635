"""A stand-in for IronMQ, which is a hosted service."""

import os
import sys
from typing import ClassVar

from tests.servers.handshake import greet_ironmq
from tests.servers.ironmq_stand_in import PROJECT, TOKEN
from tests.servers.private import ROOT, PrivateServer


class PrivateIronmq(PrivateServer):
    """The stand-in."""

    name = "ironmq"
    refuses_root: ClassVar[bool] = False

    @property
    def url(self) -> str:
        """The URL for tests."""
        return url_at(self.port)

    def install(self) -> None:
        """Do nothing: it keeps no files."""

    def command(self) -> list[str]:
        """Return the command: our own program, on loopback, found from any folder."""
        program = f"import sys; sys.path.insert(0, {os.fspath(ROOT)!r}); "
        program += f"from tests.servers.ironmq_stand_in import main; main({self.port})"
        return [sys.executable, "-c", program]

    def answers(self) -> bool:
        """Tell whether it answers."""
        try:
            greet_ironmq(self.port)
        except OSError:
            return False
        return True


def url_at(port: int) -> str:
    """Return the URL of a stand-in."""
    return f"ironmq://{PROJECT}:{TOKEN}@127.0.0.1:{port}?tls=false"
