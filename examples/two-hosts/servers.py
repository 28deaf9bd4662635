"""The database and the Redis that both hosts use, each in a folder of its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.servers.postgres import PrivatePostgres
from tests.servers.private import ServerUnavailableError
from tests.servers.redis import PrivateRedis

__all__ = ["ServerUnavailableError", "servers"]


class Postgres(PrivatePostgres):
    """One that hosts in these networks may log in to."""

    def __init__(self, addresses: list[str]) -> None:
        super().__init__(listen_addresses=",".join(addresses))
        self._addresses = addresses

    def install(self) -> None:
        """Let in who comes from a network that ends at one of the addresses."""
        super().install()
        with Path(self.folder, "data", "pg_hba.conf").open("a") as rules:
            rules.writelines(f"host all all {address}/24 trust\n" for address in self._addresses)


@contextmanager
def servers(addresses: list[str]) -> Iterator[tuple[Postgres, PrivateRedis]]:
    """Start both, to be reached at these addresses."""
    options: dict[str, Any] = {"bind": " ".join(addresses), "protected-mode": "no"}
    with Postgres(addresses) as postgres, PrivateRedis(is_durable=True, **options) as redis:
        yield postgres, redis
