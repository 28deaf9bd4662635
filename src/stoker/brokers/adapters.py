"""Find the broker by the scheme of its URL. A driver is imported only if a setting names it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from uuid import UUID

from stoker.conf import Settings
from stoker.exceptions import ConfigurationError
from stoker.tasks.decorator import own_backends

from .arrivals import Arrivals
from .contract import Broker
from .dispatch import Dispatch
from .orm.broker import OrmBroker
from .transport import Transport

ADAPTERS = {
    "orm": "stoker.brokers.orm.broker.OrmBroker",
    "memory": "stoker.brokers.memory.MemoryBroker",
    "redis": "stoker.brokers.redis.broker.RedisBroker",
    "rediss": "stoker.brokers.redis.broker.RedisBroker",
    "redis+sentinel": "stoker.brokers.redis.broker.RedisBroker",
    "redis+cluster": "stoker.brokers.redis.slots.SlottedRedisBroker",
    "unix": "stoker.brokers.redis.broker.RedisBroker",
    "mongodb": "stoker.brokers.mongodb.broker.MongodbBroker",
    "mongodb+srv": "stoker.brokers.mongodb.broker.MongodbBroker",
    "disque": "stoker.brokers.disque.transport.DisqueTransport",
    "ironmq": "stoker.brokers.ironmq.IronmqTransport",
    "sqs": "stoker.brokers.sqs.transport.SqsTransport",
}
"""URL scheme -> class. See ``name_of``."""
ALONE = ("orm", "memory")
"""Schemes of the brokers that keep all jobs of a backend, so that the backend needs no second
store."""
APART = ("redis", "mongodb", "disque", "ironmq")
"""Brokers that keep the jobs of each ``CLUSTER`` apart."""


@cache
def broker_for(settings: Settings) -> Dispatch:
    """Return the dispatch of a backend. There is one per process and settings; threads may share
    it.

    Raises:
        ConfigurationError: see ``adapter_for``.
    """
    dispatch = _dispatch(settings)
    _made.append(dispatch)
    return dispatch


_made: list[Dispatch] = []
"""The dispatches of this process."""


def close_idle_connections() -> None:
    """Close the connections to brokers that no call uses now, after a task was interrupted: one of
    them may still expect the answer to a call."""
    for dispatch in _made:
        if dispatch.broker is not None:
            dispatch.broker.close_idle()


def _dispatch(settings: Settings) -> Dispatch:
    adapter = adapter_for(settings)
    if isinstance(adapter, OrmBroker):
        return Dispatch(settings, adapter)
    if isinstance(adapter, Transport):
        store = OrmBroker(settings)
        return Dispatch(settings, store, Arrivals(adapter, store))
    if settings.broker.partition("://")[0] in ALONE:
        return Dispatch(settings, None, adapter)
    return Dispatch(settings, OrmBroker(settings), adapter)


def brokers_beside(settings: Settings) -> list[Dispatch]:
    """Return the dispatches of the other backends in ``TASKS`` that have the same database, but
    other jobs at a broker that leases jobs itself. Those whose driver is not installed are left
    out."""
    found = []
    for other in settings_with(settings.database):
        with suppress(ConfigurationError):  # `check` reports it
            if place_of(other) != place_of(settings) and broker_for(other).broker is not None:
                found.append(broker_for(other))
    return found


def leases_outside(settings: Settings) -> bool:
    """Return whether this backend has a broker outside the store, which leases jobs itself. If its
    driver is not installed, assume so."""
    try:
        return broker_for(settings).broker is not None
    except ConfigurationError:
        return True


def shares_database(settings: Settings) -> bool:
    """Return whether another backend in ``TASKS`` has the same database, but other jobs at its
    broker."""
    return any(place_of(one) != place_of(settings) for one in settings_with(settings.database))


def place_of(settings: Settings) -> tuple[str, str]:
    """Return what backends with the same jobs at a broker have in common: the URL and, if the
    broker keeps the jobs of each ``CLUSTER`` apart, that name."""
    return settings.broker, settings.cluster if keeps_clusters_apart(settings) else ""


def keeps_clusters_apart(settings: Settings) -> bool:
    """Return whether the broker of this backend keeps the jobs of each ``CLUSTER`` apart."""
    scheme = settings.broker.partition("://")[0]
    return scheme in ADAPTERS and name_of(scheme) in APART


def held_by_brokers(database: str, job_ids: Sequence[UUID]) -> set[UUID]:
    """Return which of these jobs the brokers outside the store have. All backends with this
    database are asked.

    Raises:
        BrokerUnavailable: a broker does not answer.
    """
    found: set[UUID] = set()
    for broker in [broker_for(settings).broker for settings in settings_with(database)]:
        if broker is not None:
            found |= broker.states(job_ids).keys()
    return found


def settings_with(database: str) -> list[Settings]:
    """Return the settings of all backends in ``TASKS`` with this database."""
    found: list[Settings] = [one.settings for one in own_backends().values()]
    return [settings for settings in found if settings.database == database]


def adapter_for(settings: Settings) -> Broker | Transport:
    """Return the broker or transport that ``BROKER`` names.

    Raises:
        ConfigurationError: see ``adapter_class``, or the URL cannot be used.
    """
    return adapter_class(settings)(settings)


def adapter_class(settings: Settings) -> type[Broker | Transport]:
    """Import the adapter for the scheme of ``BROKER``, and with it the driver.

    Raises:
        ConfigurationError: no adapter takes the URL's scheme, or its driver is not installed.
    """
    scheme = settings.broker.partition("://")[0]
    if scheme not in ADAPTERS:
        known = ", ".join(f"{name}://" for name in ADAPTERS)
        raise ConfigurationError(
            f'TASKS["{settings.alias}"]["OPTIONS"]["BROKER"] is {settings.shown_broker!r}, '
            f"but no broker has that scheme. Known: {known}."
        )
    module, _, name = ADAPTERS[scheme].rpartition(".")
    try:
        adapter: type[Broker | Transport] = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"{scheme}:// needs the package {error.name!r}, which is not installed: "
            f"pip install 'django-stoker[{name_of(scheme)}]'."
        ) from error
    return adapter


def name_of(scheme: str) -> str:
    """Return the name of the adapter's folder or module. Its extra in ``pyproject.toml`` has the
    same name, and so has its page ``docs/howto/use-<name>.md``."""
    return ADAPTERS[scheme].split(".")[2]
