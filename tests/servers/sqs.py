"""A stand-in for Amazon SQS: moto as a separate server."""

import os
import sys
from typing import ClassVar

from tests.servers.handshake import greet_sqs
from tests.servers.private import ROOT, PrivateServer
from tests.servers.sqs_moto import IDLE_SECONDS

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
"""It accepts any, but the driver needs some."""


def sqs_url(port: int, prefix: str = "test") -> str:
    """Return the URL of the queues with this prefix."""
    return f"sqs://us-east-1/{prefix}?endpoint=http://127.0.0.1:{port}"


class PrivateSqs(PrivateServer):
    """Moto. It keeps no data."""

    name = "sqs"
    refuses_root: ClassVar[bool] = False

    def __init__(self, idle_seconds: float = IDLE_SECONDS) -> None:
        super().__init__()
        self._idle_seconds = idle_seconds

    @property
    def url(self) -> str:
        """The URL of a prefix for tests."""
        return sqs_url(self.port)

    def command(self) -> list[str]:
        """Return the command: our own program, on loopback, found from any folder."""
        program = f"import sys; sys.path.insert(0, {os.fspath(ROOT)!r}); "
        program += (
            f"from tests.servers.sqs_moto import main; main({self.port}, {self._idle_seconds})"
        )
        return [sys.executable, "-c", program]

    def answers(self) -> bool:
        """Tell whether it says hello."""
        try:
            greet_sqs(self.port)
        except OSError:
            return False
        return True
