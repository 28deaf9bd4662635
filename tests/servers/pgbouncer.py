"""A private PgBouncer in transaction mode."""

from tests.servers.handshake import greet_postgres
from tests.servers.private import PrivateServer, find_program

CONFIGURATION = """
[databases]
* = user=postgres host={host} port={server_port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
"""


class PrivatePgbouncer(PrivateServer):
    """PgBouncer in front of a PostgreSQL whose user `postgres` needs no password.

    Args:
        host: of that PostgreSQL.
        server_port: of that PostgreSQL.
    """

    name = "pgbouncer"

    def __init__(self, host: str, server_port: int) -> None:
        super().__init__()
        self._server = {"host": host, "server_port": server_port}

    @property
    def url(self) -> str:
        """The URL of the database `postgres`."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def command(self) -> list[str]:
        """Run it on loopback only."""
        text = CONFIGURATION.format(port=self.port, **self._server)
        path = self.folder / "pgbouncer.ini"
        path.write_text(text)
        path.chmod(0o644)
        return [find_program("pgbouncer"), str(path)]

    def answers(self) -> bool:
        """Tell whether it takes a connection."""
        try:
            greet_postgres(self.port, "postgres")
        except OSError:
            return False
        return True
