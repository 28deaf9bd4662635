"""Finds a server of each kind: named by a variable, running, or started from its package."""

import getpass
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

from tests.servers.disque import PrivateDisque
from tests.servers.handshake import (
    greet_ironmq,
    greet_memcached,
    greet_mongodb,
    greet_mysql,
    greet_postgres,
    greet_redis,
    greet_sqs,
)
from tests.servers.ironmq import PrivateIronmq, url_at
from tests.servers.mariadb import PrivateMariadb
from tests.servers.memcached import PrivateMemcached
from tests.servers.mongodb import PrivateMongodb
from tests.servers.mysql import PrivateMysql
from tests.servers.postgres import PrivatePostgres
from tests.servers.private import NotInstalledError, PrivateServer, ServerUnavailableError
from tests.servers.redis import PrivateRedis
from tests.servers.sqs import PrivateSqs, sqs_url
from tests.servers.versions import VARIABLE, kind_of


@dataclass(frozen=True)
class Kind:
    """A kind of server: its usual port, and how to start a private one."""

    name: str
    variable: str
    port: int
    find_running: Callable[[int], str]
    private: type[PrivateServer]
    debian_packages: tuple[str, ...]


@dataclass(frozen=True)
class Service:
    """The server found for one kind: a URL, or the reason why there is none."""

    name: str
    variable: str
    url: str = ""
    how: str = ""
    reason: str = ""
    is_ours: bool = False
    version: str = ""
    """The version that was asked for, if it is not the usual server of its kind."""


def _running_postgres(port: int) -> str:
    refusals = []
    for user in dict.fromkeys(("postgres", getpass.getuser())):
        try:
            greet_postgres(port, user)
        except OSError as refusal:
            refusals.append(f"{user}: {refusal}")
        else:
            return f"postgresql://{user}@127.0.0.1:{port}/postgres"
    raise ConnectionError(refusals[0])


def _running_mariadb(port: int) -> str:
    greet_mysql(port, "root")
    return f"mysql://root@127.0.0.1:{port}/mysql"


def _running_redis(port: int) -> str:
    greet_redis(port)
    # Database 9: database 0 may have a developer's own keys.
    return f"redis://127.0.0.1:{port}/9"


def _running_memcached(port: int) -> str:
    greet_memcached(port)
    return f"memcached://127.0.0.1:{port}"


def _running_mongodb(port: int) -> str:
    greet_mongodb(port)
    return f"mongodb://127.0.0.1:{port}/stoker_test"


def _running_disque(port: int) -> str:
    greet_redis(port)
    return f"disque://127.0.0.1:{port}"


def _running_ironmq(port: int) -> str:
    greet_ironmq(port)
    return url_at(port)


def _running_sqs(port: int) -> str:
    greet_sqs(port)
    return sqs_url(port)


KINDS = (
    Kind(
        "postgres",
        "STOKER_TEST_POSTGRES_URL",
        5432,
        _running_postgres,
        PrivatePostgres,
        ("postgresql",),
    ),
    Kind(
        "mariadb",
        "STOKER_TEST_MARIADB_URL",
        3306,
        _running_mariadb,
        PrivateMariadb,
        ("mariadb-server",),
    ),
    Kind(
        "redis",
        "STOKER_TEST_REDIS_URL",
        6379,
        _running_redis,
        PrivateRedis,
        ("redis-server",),
    ),
    Kind(
        "memcached",
        "STOKER_TEST_MEMCACHED_URL",
        11211,
        _running_memcached,
        PrivateMemcached,
        ("memcached",),
    ),
    Kind(
        "mongodb",
        "STOKER_TEST_MONGODB_URL",
        27017,
        _running_mongodb,
        PrivateMongodb,
        (),
    ),
    Kind(
        "disque",
        "STOKER_TEST_DISQUE_URL",
        7711,
        _running_disque,
        PrivateDisque,
        (),
    ),
    Kind(
        "ironmq",
        "STOKER_TEST_IRONMQ_URL",
        8080,
        _running_ironmq,
        PrivateIronmq,
        (),
    ),
    Kind("sqs", "STOKER_TEST_SQS_URL", 5000, _running_sqs, PrivateSqs, ()),
)


def find_services(stack: ExitStack, versions: Iterable[str] = ()) -> list[Service]:
    """Find a server of each kind. Servers that it starts end with the stack.

    Args:
        versions: names of ``versions.VERSIONS``, each of which takes the place of the usual server.

    Raises:
        ValueError: there is no such version.
    """
    chosen = {kind_of(name): name for name in versions}
    return [
        start_version(chosen[kind.name], stack) if kind.name in chosen else _find(kind, stack)
        for kind in KINDS
    ]


def start_version(name: str, stack: ExitStack) -> Service:
    """Start a version of a server that is downloaded first. Raises: ValueError."""
    kind = next(kind for kind in KINDS if kind.name == kind_of(name))
    server = PrivateMysql(name) if name.startswith("mysql-") else kind.private()
    server.version = name
    try:
        stack.enter_context(server)
    except ServerUnavailableError as unavailable:
        reason = str(unavailable).replace("\n", " ").replace("; ", ", ")
        return Service(name, kind.variable, reason=reason, version=name)
    how = f"started on port {server.port}"
    return Service(name, kind.variable, server.url, how, is_ours=True, version=name)


def exports_of(services: list[Service]) -> Iterator[tuple[str, str]]:
    """Yield the environment variables that name the servers to the tests, and what is missing."""
    for service in services:
        if service.url:
            yield service.variable, service.url
    missing = [f"{service.name}: {service.reason}" for service in services if not service.url]
    yield "STOKER_TEST_MISSING", "; ".join(missing)
    if versions := [service.version for service in services if service.url and service.version]:
        yield VARIABLE, " ".join(versions)


def _find(kind: Kind, stack: ExitStack) -> Service:
    if url := os.environ.get(kind.variable):
        return Service(kind.name, kind.variable, url, f"named by {kind.variable}")
    try:
        url = kind.find_running(kind.port)
    except OSError as refusal:
        why_not = f"port {kind.port}: {refusal.strerror or refusal}"
    else:
        return Service(kind.name, kind.variable, url, "already running")
    try:
        url, how = _start(kind, stack)
    except ServerUnavailableError as unavailable:
        reason = f"{why_not}, and {unavailable}".replace("\n", " ").replace("; ", ", ")
        return Service(kind.name, kind.variable, reason=reason)
    return Service(kind.name, kind.variable, url, how, is_ours=True)


def _start(kind: Kind, stack: ExitStack) -> tuple[str, str]:
    how = "started"
    try:
        server = stack.enter_context(kind.private())
    except NotInstalledError:
        _install(kind)
        how = "installed and started"
        server = stack.enter_context(kind.private())
    return server.url, f"{how} on port {server.port}"


WHEN_UNLOCKED = ("-o", "DPkg::Lock::Timeout=300")
"""Wait for another process that installs packages, such as a second run of the tests."""


def _install(kind: Kind) -> None:
    """Install the Debian packages if that is possible and allowed, else raise with the reason."""
    if os.environ.get("STOKER_NO_APT"):
        raise ServerUnavailableError("not installed, and STOKER_NO_APT forbids installing it")
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise ServerUnavailableError("not installed, and only root on Debian can install it here")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = (
        "apt-get", "install", *WHEN_UNLOCKED, "-y", "--no-install-recommends",
        *kind.debian_packages,
    )  # fmt: skip
    for command in (("apt-get", "update"), install):  # an update may fail because another one runs
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        said = lines[-1] if lines else f"exit code {done.returncode}"
        raise ServerUnavailableError(f"apt-get install failed: {said}")
