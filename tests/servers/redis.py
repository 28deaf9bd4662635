"""A private Redis or Valkey."""

from tests.servers.handshake import greet_redis
from tests.servers.private import PrivateServer, find_program, free_port
from tests.servers.versions import chosen_version, program_of

PROGRAMS = ("redis-server", "valkey-server")


class PrivateRedis(PrivateServer):
    """Redis without a password.

    Args:
        is_durable: it syncs every write to its log before it answers; else it keeps nothing.
        in_cluster: it is a node of a Redis cluster, which still has to be put together.
        options: more of its configuration, by name.
    """

    name = "redis"

    def __init__(
        self, *, is_durable: bool = False, in_cluster: bool = False, **options: str
    ) -> None:
        super().__init__()
        self.version = chosen_version(self.name)
        self._options = {"appendonly": "yes" if is_durable else "no", **options}
        if is_durable:
            self._options["appendfsync"] = "always"
        self._own_bus_port = 0
        if in_cluster:
            self._options["cluster-enabled"] = "yes"
            if self.version != "redis-6.2":  # there the bus has no option of its own
                self._own_bus_port = free_port()
                self._options["cluster-port"] = str(self._own_bus_port)

    @property
    def url(self) -> str:
        """The URL of its database 0."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def bus_port(self) -> int:
        """The port at which the nodes of a cluster talk to each other."""
        return self._own_bus_port or self.port + 10_000

    def command(self) -> list[str]:
        """Run it on loopback only."""
        program = program_of(self.version, *PROGRAMS) if self.version else find_program(*PROGRAMS)
        place = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        # Redis 6.2 needs each word of a value as its own argument; later versions accept both.
        options = self._options.items()
        more = [word for name, value in options for word in (f"--{name}", *value.split())]
        return [program, *place, "--save", "", *more]

    def answers(self) -> bool:
        """Tell whether it takes a connection."""
        try:
            greet_redis(self.port)
        except OSError:
            return False
        return True
