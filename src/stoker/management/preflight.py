"""Before a cluster starts: a look at its store, by a process of its own.

The sentinel must never have had a connection: whatever it opened before it starts its children,
they would share. So a short-lived child looks, and says what it found.
"""

from __future__ import annotations

import multiprocessing
import signal
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from stoker.cluster.plan import Plan
from stoker.cluster.process import start_method
from stoker.exceptions import ConfigurationError, StokerError

START_SECONDS = 30.0
"""How long the child may take to start, over and above the deadline of the database."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What the look at the store came to."""

    is_fit: bool = True
    """False: nothing can come of a cluster until somebody has done something."""
    sentence: str = ""
    """What is wrong; with ``is_fit``, what passes by itself."""
    weaknesses: tuple[str, ...] = ()
    """What may lose jobs one day."""


def look_at_store(plan: Plan) -> Finding:
    """Whether a cluster can work with the store as it is: its tables are there, or it is only out
    of reach for now."""
    context: Any = multiprocessing.get_context(start_method(plan))
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_look, args=(plan, theirs), name="stoker preflight")
    process.start()
    theirs.close()
    limit_seconds = START_SECONDS + plan.settings.database_seconds
    try:
        if not ours.poll(limit_seconds):
            return Finding(sentence=f"The store has not answered for {limit_seconds:.0f} s.")
        finding = ours.recv()
        assert isinstance(finding, Finding)
        return finding
    except EOFError:
        process.join()
        return Finding(sentence=f"The look at the store ended with exit code {process.exitcode}.")
    finally:
        process.kill()
        process.join()
        process.close()
        ours.close()


def release_connections() -> None:
    """Close every connection to a database that this process has.

    Raises:
        ConfigurationError: one stays open, so that no cluster may start from here.
    """
    from django.db import connections

    connections.close_all()
    for connection in connections.all(initialized_only=True):
        close_pool = getattr(connection, "close_pool", None)
        if close_pool is not None:
            close_pool()
        if connection.connection is not None:
            raise ConfigurationError(
                f"The connection to the database {connection.alias!r} cannot be closed, for it is "
                "in a transaction: start the cluster outside of it."
            )


def _look(plan: Plan, answer: Connection) -> None:
    """The child."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is told as well, and ends us
    import django

    django.setup()
    answer.send(_found(plan))


def _found(plan: Plan) -> Finding:
    from django.core.exceptions import ImproperlyConfigured
    from django.db import DatabaseError, InterfaceError

    from stoker.brokers import broker_for
    from stoker.cluster.patience import set_deadlines
    from stoker.exceptions import BrokerUnavailable, NotMigrated, PoolerRefused

    from .subcommand import one_sentence

    try:
        broker_for(plan.settings)  # a wrong setting comes before missing tables
        set_deadlines(plan.settings)
        _read_every_table(plan.settings.database)
        return Finding(weaknesses=_ask_broker(plan))
    except (NotMigrated, PoolerRefused) as error:
        return Finding(is_fit=False, sentence=str(error))
    except (BrokerUnavailable, DatabaseError, InterfaceError) as error:
        return Finding(sentence=one_sentence(error))
    except (StokerError, ImproperlyConfigured) as error:
        return Finding(is_fit=False, sentence=one_sentence(error))


def _read_every_table(alias: str) -> None:
    """A row of each, for the names of the columns: an upgrade may have brought new ones."""
    from django.apps import apps

    from stoker.progress import explained

    with explained(alias):
        for model in apps.get_app_config("stoker").get_models():
            columns = [field.attname for field in model._meta.concrete_fields]
            list(model._base_manager.using(alias).values_list(*columns)[:1])


def _ask_broker(plan: Plan) -> tuple[str, ...]:
    from stoker.brokers import broker_for

    broker = broker_for(plan.settings)
    if not broker.capabilities.shared:
        raise ConfigurationError(
            f"{plan.settings.broker} keeps the jobs of each process to itself, so a cluster would "
            "never see any: let BROKER be orm://default, say."
        )
    weaknesses: list[str] = []
    if not broker.capabilities.transactional:
        broker.ping()
        weaknesses = broker.weaknesses()
    broker.close()
    return tuple(weaknesses)
