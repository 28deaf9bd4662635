"""A private MariaDB.

with PrivateMariadb() as server:
    connect(server.url)
    server.kill()
    server.start()
"""

from tests.servers.handshake import greet_mysql
from tests.servers.private import PrivateServer, find_program


class PrivateMariadb(PrivateServer):
    """MariaDB with user `root` without a password. `settings` are options of mariadbd."""

    name = "mariadb"

    def __init__(self, **settings: str) -> None:
        super().__init__()
        self.settings = settings

    @property
    def url(self) -> str:
        """The URL of its system database."""
        return f"mysql://root@127.0.0.1:{self.port}/mysql"

    def install(self) -> None:
        """Create the data directory."""
        program = find_program("mariadb-install-db", "mysql_install_db")
        way = "--auth-root-authentication-method=normal"
        self.run([program, "--no-defaults", self._data, way, "--skip-test-db"])

    def command(self) -> list[str]:
        """Run it on loopback only."""
        return [
            find_program("mariadbd", "mysqld"),
            "--no-defaults",
            self._data,
            *self._options(),
        ]

    def _options(self) -> list[str]:
        return [
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            f"--socket={self.folder / 'server.sock'}",
            f"--pid-file={self.folder / 'database.pid'}",
            "--skip-name-resolve",
            *(f"--{name.replace('_', '-')}={value}" for name, value in self.settings.items()),
        ]

    def answers(self) -> bool:
        """Tell whether it takes a connection."""
        try:
            greet_mysql(self.port, "root")
        except OSError:
            return False
        return True

    @property
    def _data(self) -> str:
        return f"--datadir={self.folder / 'data'}"
