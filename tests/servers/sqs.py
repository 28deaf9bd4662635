"""What stands in for Amazon SQS: moto, as a server of its own."""

import os
import sys
from typing import ClassVar

from tests.servers.handshake import greet_sqs
from tests.servers.private import ROOT, PrivateServer

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
"""It takes any, but the driver wants some."""


def sqs_url(port: int, prefix: str = "test") -> str:
    """Name the queues of this prefix there."""
    return f"sqs://us-east-1/{prefix}?endpoint=http://127.0.0.1:{port}"


class PrivateSqs(PrivateServer):
    """Moto. It keeps nothing when it ends."""

    name = "sqs"
    refuses_root: ClassVar[bool] = False

    @property
    def url(self) -> str:
        """The URL of a prefix for tests."""
        return sqs_url(self.port)

    def command(self) -> list[str]:
        """Run it on loopback only. It is a program of ours, and found from anywhere."""
        program = f"import sys; sys.path.insert(0, {os.fspath(ROOT)!r}); "
        program += f"from tests.servers.sqs_moto import main; main({self.port})"
        return [sys.executable, "-c", program]

    def answers(self) -> bool:
        """Tell whether it says hello."""
        try:
            greet_sqs(self.port)
        except OSError:
            return False
        return True
