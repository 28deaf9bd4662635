"""A private MySQL, which clients use like MariaDB, but which is started in another way."""

from tests.servers.mariadb import PrivateMariadb
from tests.servers.versions import fetched, program_of

USER = """\
CREATE USER root@'127.0.0.1';
GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;
"""


class PrivateMysql(PrivateMariadb):
    """MySQL with user `root` without a password. `settings` are options of mysqld."""

    name = "mysql"

    def __init__(self, version: str, **settings: str) -> None:
        super().__init__(**settings)
        self.version = version

    def install(self) -> None:
        """Create the data directory."""
        (self.folder / "user.sql").write_text(USER)
        first = ("--initialize-insecure", f"--init-file={self.folder / 'user.sql'}")
        self.run([*self._program(), *first])

    def command(self) -> list[str]:
        """Run it on loopback only."""
        return [*self._program(), "--mysqlx=OFF", *self._options()]

    def _program(self) -> list[str]:
        """Return the command with the loader from its package: it needs a newer C library.

        Only this program uses the libraries of that package.
        """
        root = fetched(self.version)
        libraries = program_of(self.version, "libc.so.6").rpartition("/")[0]
        return [
            program_of(self.version, "ld-linux-*.so.*"),
            "--library-path",
            libraries,
            program_of(self.version, "mysqld"),
            "--no-defaults",
            self._data,
            f"--basedir={root / 'usr'}",
            "--secure-file-priv=NULL",
        ]
