"""A private Redis or Valkey."""

from tests.servers.handshake import greet_redis
from tests.servers.private import PrivateServer, find_program


class PrivateRedis(PrivateServer):
    """Redis without a password.

    Args:
        is_durable: it syncs every write to its log before it answers; else it keeps nothing.
        options: more of its configuration, by name.
    """

    name = "redis"

    def __init__(self, *, is_durable: bool = False, **options: str) -> None:
        super().__init__()
        self._options = {"appendonly": "yes" if is_durable else "no", **options}
        if is_durable:
            self._options["appendfsync"] = "always"

    @property
    def url(self) -> str:
        """The URL of its database 0."""
        return f"redis://127.0.0.1:{self.port}/0"

    def command(self) -> list[str]:
        """Run it on loopback only."""
        program = find_program("redis-server", "valkey-server")
        place = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        more = [word for name, value in self._options.items() for word in (f"--{name}", value)]
        return [program, *place, "--save", "", *more]

    def answers(self) -> bool:
        """Tell whether it takes a connection."""
        try:
            greet_redis(self.port)
        except OSError:
            return False
        return True
