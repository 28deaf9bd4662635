"""Brokers: where packages wait. ``base`` is the contract; an adapter is imported only when a
setting names it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cache
from importlib import import_module
from uuid import UUID

from stoker.conf import Settings
from stoker.exceptions import ConfigurationError
from stoker.models.outbox import Outgoing, find_outgoing, possible_outboxes

from .contract import Broker
from .transport import Transport

ADAPTERS = {
    "orm": "stoker.brokers.orm.broker.OrmBroker",
    "memory": "stoker.brokers.memory.MemoryBroker",
    "redis": "stoker.brokers.redis.broker.RedisBroker",
    "rediss": "stoker.brokers.redis.broker.RedisBroker",
    "redis+sentinel": "stoker.brokers.redis.broker.RedisBroker",
    "redis+cluster": "stoker.brokers.redis.broker.RedisBroker",
    "unix": "stoker.brokers.redis.broker.RedisBroker",
    "mongodb": "stoker.brokers.mongodb.broker.MongodbBroker",
    "mongodb+srv": "stoker.brokers.mongodb.broker.MongodbBroker",
    "disque": "stoker.brokers.disque.transport.DisqueTransport",
    "ironmq": "stoker.brokers.ironmq.IronmqTransport",
    "sqs": "stoker.brokers.sqs.transport.SqsTransport",
}
"""URL scheme -> class."""
ALONE = ("orm", "memory")
"""Names of the brokers that are used without a ``FrontedBroker``."""


@cache
def broker_for(settings: Settings) -> Broker:
    """The broker that ``BROKER`` names, with the store in front of it where it needs that; one per
    process and settings, safe to share by threads.

    Raises:
        ConfigurationError: see ``adapter_for``.
    """
    adapter = adapter_for(settings)
    if isinstance(adapter, Transport):
        from .carried import CarriedBroker

        return CarriedBroker(settings, adapter)
    if settings.broker.partition("://")[0] in ALONE:
        return adapter
    from .fronted import FrontedBroker

    return FrontedBroker(settings, adapter)


def adapter_for(settings: Settings) -> Broker | Transport:
    """Connect to the place that ``BROKER`` names.

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
            f'TASKS["{settings.alias}"]["OPTIONS"]["BROKER"] is {settings.broker!r}, '
            f"but no broker has that scheme. Known: {known}."
        )
    module, _, name = ADAPTERS[scheme].rpartition(".")
    try:
        adapter: type[Broker | Transport] = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        extra = module.split(".")[2]
        raise ConfigurationError(
            f"{scheme}:// needs the package {error.name!r}, which is not installed: "
            f"pip install 'django-stoker[{extra}]'."
        ) from error
    return adapter


def outboxes_of(settings: Settings) -> list[str]:
    """Return the aliases of the databases that may have an outbox for this backend."""
    joins = broker_for(settings).capabilities.transactional
    return possible_outboxes(settings.database, joins_transactions=joins)


def outgoing_of(settings: Settings, job_ids: Collection[UUID]) -> Iterator[Outgoing]:
    """Yield the outbox rows of these jobs, which have not been relayed to their broker.

    Raises:
        BrokerUnavailable: a database did not answer.
    """
    for alias in outboxes_of(settings) if job_ids else ():
        yield from find_outgoing(alias, job_ids, settings.database, settings.database_seconds)
