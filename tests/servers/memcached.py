"""A private memcached."""

from tests.servers.handshake import greet_memcached
from tests.servers.private import PrivateServer, find_program


class PrivateMemcached(PrivateServer):
    """Memcached with little memory, over TCP only."""

    name = "memcached"

    @property
    def url(self) -> str:
        """The address where it listens."""
        return f"memcached://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        """Run it on loopback only."""
        program = find_program("memcached")
        return [program, "-l", "127.0.0.1", "-p", str(self.port), "-U", "0", "-m", "64"]

    def answers(self) -> bool:
        """Tell whether it takes a connection."""
        try:
            greet_memcached(self.port)
        except OSError:
            return False
        return True
