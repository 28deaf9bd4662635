"""The database and the Redis that both hosts use, each in its own folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.servers.postgres import PrivatePostgres
from tests.servers.private import ServerUnavailableError
from tests.servers.redis import PrivateRedis

__all__ = ["ServerUnavailableError", "servers"]


class Postgres(PrivatePostgres):
    """A PostgreSQL to which hosts in these networks may log in."""

    def __init__(self, addresses: list[str]) -> None:
        super().__init__(listen_addresses=",".join(addresses))
        self._addresses = addresses

    def install(self) -> None:
        """Accept connections from the networks of these addresses."""
        super().install()
        with Path(self.folder, "data", "pg_hba.conf").open("a") as rules:
            rules.writelines(f"host all all {address}/24 trust\n" for address in self._addresses)


@contextmanager
def servers(addresses: list[str]) -> Iterator[tuple[Postgres, PrivateRedis]]:
    """Start both servers on these addresses."""
    options: dict[str, Any] = {"bind": " ".join(addresses), "protected-mode": "no"}
    with Postgres(addresses) as postgres, PrivateRedis(is_durable=True, **options) as redis:
        yield postgres, redis
