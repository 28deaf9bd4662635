"""A stand-in for MongoDB: neither Debian nor PyPI has a package with the server."""

import os
import sys
from typing import ClassVar

from tests.servers.handshake import greet_mongodb
from tests.servers.private import ROOT, PrivateServer


class PrivateMongodb(PrivateServer):
    """The stand-in, as the one member of a replica set or alone."""

    name = "mongodb"
    refuses_root: ClassVar[bool] = False

    def __init__(self, replica_set: str = "rs0") -> None:
        super().__init__()
        self.replica_set = replica_set

    @property
    def url(self) -> str:
        """The URL of a database for tests."""
        return f"mongodb://127.0.0.1:{self.port}/stoker_test"

    def command(self) -> list[str]:
        """Return the command: our own program, on loopback, found from any folder."""
        program = f"import sys; sys.path.insert(0, {os.fspath(ROOT)!r}); "
        program += "from tests.servers.mongodb_wire import main; "
        program += f"main({self.port}, {self.replica_set!r})"
        return [sys.executable, "-c", program]

    def answers(self) -> bool:
        """Tell whether it says hello."""
        try:
            greet_mongodb(self.port)
        except OSError:
            return False
        return True
