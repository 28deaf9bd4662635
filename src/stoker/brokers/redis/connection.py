"""Connect to Redis or Valkey (a single server, Sentinel or Redis Cluster), and check its
configuration."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import (
    AuthorizationError,
    NoPermissionError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    SlotNotCoveredError,
)
from redis.retry import Retry
from redis.sentinel import Sentinel

from stoker.conf import Settings
from stoker.exceptions import BrokerUnavailable, ConfigurationError
from stoker.store.written import MICROSECONDS

CONNECT_SECONDS = 2.0
"""Time for a connection to one of several hosts."""
USUAL_NODES = 3
PORTS = {"redis+sentinel": 26379, "redis+cluster": 6379}
FAILURES = (RedisError, RedisClusterException, OSError)
"""The errors that the driver raises."""
OLDEST = (5, 0)
"""Oldest usable version of Redis. Since then a script may read the time and write afterwards."""


def connect(settings: Settings) -> Any:
    """Return a client of a server, of a Sentinel's master, or of a Redis cluster. A client connects
    on first use; only a cluster is asked for its nodes at once.

    Raises:
        ConfigurationError: the URL cannot be used.
        BrokerUnavailable: no node of a cluster answers.
    """
    seconds = settings.database_seconds
    options: dict[str, Any] = {
        "socket_timeout": seconds,
        "socket_connect_timeout": seconds,
        "socket_keepalive": True,
        "health_check_interval": 30,
        # With protocol 3 the driver no longer checks a connection for the answer of an interrupted
        # call, and Redis 5 does not know it.
        "protocol": 2,
        # If an enqueue whose answer was lost were repeated, a job that has ended meanwhile could be
        # added a second time. And with retries a call would take several times its deadline.
        "retry": Retry(NoBackoff(), 0),
    }
    try:
        parts = urlsplit(settings.broker)
        if parts.scheme == "redis+sentinel":
            _refuse_options(settings, parts, known="sentinel_password")
            return _master(parts, options)
        if parts.scheme == "redis+cluster":
            _refuse_options(settings, parts, known="slots")
            with explained(settings):
                return _cluster(parts, options)
        if parts.scheme == "unix":
            del options["socket_keepalive"]  # which the driver accepts only for TCP
        else:
            int(parts.path.strip("/") or 0)  # the driver takes any other value for 0
        return redis.Redis.from_url(settings.broker, **options)
    except ValueError as error:
        example = "redis://HOST:PORT/DATABASE, say redis://127.0.0.1:6379/0"
        raise settings.wrong_broker(error, example) from None


@contextmanager
def explained(
    settings: Settings,
    reconnect: Callable[[], object] | None = None,
    forget_nodes: Callable[[], object] | None = None,
) -> Iterator[None]:
    """Turn the driver's errors into BrokerUnavailable.

    Args:
        reconnect: called if the server has become a replica: it may leave its connections open, and
            new ones are led to the new master.
        forget_nodes: called if no node of a Redis cluster answers. The driver asks only nodes that
            it has found before, and all of them may have other addresses now.
    """
    try:
        yield
    except FAILURES as error:
        is_replica = isinstance(error, ReadOnlyError) or "READONLY" in str(error)
        if is_replica and reconnect is not None:
            reconnect()
        if forget_nodes is not None and _knows_no_node(error):
            forget_nodes()
        where = settings.shown_broker
        what = "cannot be reached" if _is_away(error) else "could not process the request"
        raise BrokerUnavailable(f"{where} {what}: {error}{_advice(error)}") from error


def weaknesses(client: Any) -> list[str]:
    """Return a sentence for each setting of the server that may lose jobs, with a remedy. A setting
    that the server does not report is taken to be right."""
    memory, persistence = about(client, "memory"), about(client, "persistence")
    server = about(client, "server")
    found = []
    policy = str(memory.get("maxmemory_policy", "noeviction"))
    if int(memory.get("maxmemory", 0)) and policy != "noeviction":
        found.append(
            f"Redis may evict jobs when its memory is full: maxmemory-policy is {policy}. Set it "
            "to noeviction, or use a Redis that is not a cache."
        )
    if not int(persistence.get("aof_enabled", 1)):
        found.append(
            "Redis loses jobs when it crashes: appendonly is no. Set appendonly yes and "
            "appendfsync always; with appendfsync everysec it loses those of the last second."
        )
    elif (syncs := _appendfsync(client)) != "always":
        found.append(
            "Redis may lose confirmed jobs when its host crashes: appendfsync is "
            f"{syncs}. Set appendfsync always."
        )
    version = str(server.get("redis_version", "5.0"))
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        found.append(f"Redis {version} is too old: use 5.0 or later, or Valkey.")
    return found


def _appendfsync(client: Any) -> str:
    """Return the setting ``appendfsync``. If several nodes differ, return one that is not "always".
    If it cannot be read, return "always"."""
    try:
        told = client.config_get("appendfsync")
    except FAILURES:
        return "always"
    nodes = [one for one in told.values() if isinstance(one, dict)] or [told]
    values = [str(one.get("appendfsync", "always")) for one in nodes]
    return next((value for value in values if value != "always"), "always")


def disconnect(client: Any) -> None:
    """Close the connections of a client, if there is one. The next call opens new ones."""
    with suppress(*FAILURES):
        if isinstance(client, RedisCluster):
            client.disconnect_connection_pools()  # type: ignore[no-untyped-call] # it has no types
        elif client is not None:
            client.connection_pool.disconnect()


def disconnect_idle(client: Any) -> None:
    """Close the connections of a client, if there is one, that no call uses now."""
    with suppress(*FAILURES):
        nodes: Any = [client]
        if isinstance(client, RedisCluster):
            nodes = [node.redis_connection for node in client.get_nodes()]  # type: ignore[no-untyped-call] # it has no types
        for one in nodes:
            if one is not None:
                one.connection_pool.disconnect(inuse_connections=False)


def about(client: Any, section: str) -> Mapping[str, Any]:
    """Return a section of the server's ``INFO``, nothing if the user may not read it. For the
    section "server" of a cluster, return that of one node."""
    try:
        told = client.info(section)
    except NoPermissionError:
        return {}
    if told and all(isinstance(one, dict) for one in told.values()) and section == "server":
        return dict(next(iter(told.values())))
    return dict(told)


def _refuse_options(settings: Settings, parts: SplitResult, known: str) -> None:
    """Raise ConfigurationError for an option that would have no effect."""
    if set(parse_qs(parts.query, keep_blank_values=True)) - {known}:
        # It is not named, because it may be a part of a password that is not escaped.
        raise ConfigurationError(
            f'TASKS["{settings.alias}"]["OPTIONS"]["BROKER"] begins with {parts.scheme}:// and '
            f"takes no option but {known!r}."
        )


def _bounded(options: dict[str, Any], hosts: int) -> dict[str, Any]:
    """Return the options for servers that the driver asks one after the other. All of them together
    get about as long as a single server, because a process that waits longer counts as hung."""
    share = options["socket_timeout"] / (hosts + 1)
    connect_share = min(share, CONNECT_SECONDS)
    return {**options, "socket_timeout": share, "socket_connect_timeout": connect_share}


def _master(parts: SplitResult, options: dict[str, Any]) -> Any:
    name, _, database = parts.path.strip("/").partition("/")
    password = parse_qs(parts.query).get("sentinel_password", [None])[0]
    hosts = _hosts(parts)
    asking = {**_bounded(options, len(hosts)), "password": password}
    connecting = {**options, "socket_connect_timeout": asking["socket_connect_timeout"]}
    watch: Any = Sentinel(  # type: ignore[no-untyped-call] # it has no types
        hosts, sentinel_kwargs=asking, **connecting
    )
    return watch.master_for(name or "mymaster", db=int(database or 0), **_login(parts))


def _cluster(parts: SplitResult, options: dict[str, Any]) -> Any:
    node: Any = ClusterNode  # it has no types
    nodes = [node(*host) for host in _hosts(parts)]
    # The cluster may have more nodes than the URL names.
    bounded = _bounded(options, max(len(nodes), USUAL_NODES))
    given: dict[str, Any] = {"startup_nodes": nodes, **_login(parts), **bounded}
    # A new client asks the master with the first slots for its commands, and with a retry another
    # one if that is away. After each failure the driver looks for nodes again, which waits for
    # those that hang, so more retries would take too long.
    client = RedisCluster(**{**given, "retry": Retry(NoBackoff(), 1)})
    client.set_retry(options["retry"])
    return client


def _hosts(parts: SplitResult) -> list[tuple[str, int]]:
    hosts = []
    for one in parts.netloc.rpartition("@")[2].split(","):
        name, _, port = one.partition(":")
        hosts.append((name, int(port or PORTS[parts.scheme])))
    return hosts


def _login(parts: SplitResult) -> dict[str, str | None]:
    given = {"username": parts.username, "password": parts.password}
    return {name: unquote(value) if value else None for name, value in given.items()}


def _is_away(error: Exception) -> bool:
    """Return whether there is no connection to a server, as opposed to a server that refuses."""
    if isinstance(error, redis.TimeoutError):
        return "connecting" in str(error)
    refusals = (redis.AuthenticationError, AuthorizationError, redis.BusyLoadingError)
    return isinstance(error, redis.ConnectionError | OSError) and not isinstance(error, refusals)


def _knows_no_node(error: Exception) -> bool:
    """Return whether no node of a Redis cluster answers, not only the node of one slot."""
    is_of_cluster = isinstance(error, RedisClusterException)
    return is_of_cluster and not isinstance(error, SlotNotCoveredError)


def _advice(error: Exception) -> str:
    if "maxmemory" in str(error):
        return " Its memory is full: raise maxmemory, or let clusters run the waiting jobs."
    if isinstance(error, redis.AuthenticationError):
        return " Write user and password in BROKER: redis://USER:PASSWORD@HOST:PORT/0."
    return ""


class SentCommand:
    """A command whose reply is read later, so that the caller can do something else meanwhile.

    Args:
        client: a client of a single server or of a Sentinel's master.
        command: the name of the command and its arguments.
    """

    def __init__(self, client: Any, *command: Any) -> None:
        self._pool = client.connection_pool
        self._connection = self._pool.get_connection()
        try:
            self._connection.send_command(*command)
        except BaseException:
            self._release()
            raise

    def reply(self) -> Any:
        """Wait for the reply and return it. Another call raises an error.

        Raises:
            RedisError, OSError: no reply came, or the server refused the command.
        """
        if self._connection is None or self._connection._sock is None:
            self._release()
            raise redis.ConnectionError("The connection was closed before the reply came.")
        try:
            return self._connection.read_response()
        finally:
            self._release()

    def _release(self) -> None:
        """Give the connection back to the pool. The driver has closed it if a reply is missing."""
        if self._connection is not None:
            self._pool.release(self._connection)
            self._connection = None


class ServerClock:
    """The server's time, calculated from the monotonic clock after one request.

    Args:
        ask: returns the server's time in microseconds since 1970.
    """

    def __init__(self, ask: Callable[[], int]) -> None:
        self._ask = ask
        self._lead: float | None = None
        """Server's clock minus our monotonic clock, in seconds."""

    def now(self) -> float:
        """Return seconds since 1970. The first call asks the server."""
        if self._lead is None:
            self._lead = self._ask() / MICROSECONDS - time.monotonic()
        return time.monotonic() + self._lead

    def ask_again(self) -> None:
        """Ask the server again at the next call, because the calculated time was wrong."""
        self._lead = None
