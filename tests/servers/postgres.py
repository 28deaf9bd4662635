"""A private PostgreSQL.

with PrivatePostgres() as server:
    connect(server.url)
    server.stop(mode="immediate")
    server.start()
"""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import ClassVar

from tests.servers.handshake import greet_postgres
from tests.servers.private import PrivateServer, find_program
from tests.servers.versions import chosen_version, program_of


class PrivatePostgres(PrivateServer):
    """PostgreSQL with user `postgres` and no password. `settings` are those of postgresql.conf."""

    name = "postgres"
    modes: ClassVar = {
        "smart": signal.SIGTERM,
        "fast": signal.SIGINT,
        "immediate": signal.SIGQUIT,
    }

    def __init__(self, **settings: str) -> None:
        super().__init__()
        self.version = chosen_version(self.name)
        self.settings = settings
        self._primary = ""
        """Address of the primary of this replica; empty = this is a primary."""

    @property
    def url(self) -> str:
        """The URL of its database `postgres`."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def install(self) -> None:
        """Create the data directory."""
        data = str(self.folder / "data")
        if self._primary:
            # Without -R: PostgreSQL 18 writes options there that an older libpq refuses.
            copy = self.program("pg_basebackup")
            self.run([copy, "-D", data, "-d", self._primary, "-X", "stream", "-c", "fast"])
            self.run(["touch", f"{data}/standby.signal"])
            return
        login = ("-A", "trust", "-U", "postgres")
        text = ("--encoding=UTF8", "--locale=C")
        self.run([self.program("initdb"), "-D", data, *login, *text, "--no-sync"])

    def command(self) -> list[str]:
        """Run it on loopback only, without a socket file."""
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            **({"primary_conninfo": self._primary} if self._primary else {}),
            **self.settings,
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        data = str(self.folder / "data")
        return [self.program("postgres"), "-D", data, "-p", str(self.port), *options]

    def be_replica_of(self, primary: PrivatePostgres) -> None:
        """Start as a streaming replica of this server. Call it before the start."""
        self._primary = f"host=127.0.0.1 port={primary.port} user=postgres"

    def promote(self) -> None:
        """Promote this replica to a primary, and wait until it is one."""
        data = str(self.folder / "data")
        self.run([self.program("pg_ctl"), "promote", "-D", data, "-w"])

    def answers(self) -> bool:
        """Tell whether it takes a connection and has finished its recovery."""
        try:
            greet_postgres(self.port, "postgres")
        except OSError:
            return False
        return True

    def program(self, name: str) -> str:
        """Return the path of one of its programs, of the chosen version."""
        if self.version:
            return program_of(self.version, name)
        # Debian and Red Hat keep the server's programs outside PATH, in a folder for each version.
        folders = [*Path("/usr/lib/postgresql").glob("*/bin"), *Path("/usr").glob("pgsql-*/bin")]
        folders.sort(key=lambda folder: int(re.sub(r"\D", "", str(folder)) or 0), reverse=True)
        return find_program(name, folders=folders)
