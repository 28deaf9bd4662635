"""A private Redis or Valkey, which keeps nothing on disk."""

from tests.servers.handshake import greet_redis
from tests.servers.private import PrivateServer, find_program


class PrivateRedis(PrivateServer):
    """Redis without a password."""

    name = "redis"

    @property
    def url(self) -> str:
        """The URL of its database 0."""
        return f"redis://127.0.0.1:{self.port}/0"

    def command(self) -> list[str]:
        """Run it on loopback only."""
        program = find_program("redis-server", "valkey-server")
        place = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        return [program, *place, "--save", "", "--appendonly", "no"]

    def answers(self) -> bool:
        """Tell whether it takes a connection."""
        try:
            greet_redis(self.port)
        except OSError:
            return False
        return True
