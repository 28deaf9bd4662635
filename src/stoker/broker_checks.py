"""What is wrong, or risky, in ``BROKER``: a part of ``manage.py check``."""

from __future__ import annotations

from collections.abc import Iterator

from django.core.checks import CheckMessage, Error, Warning  # noqa: A004 - Django's own names
from django.db import connections

from .brokers import ADAPTERS, ALONE, adapter_for
from .conf import Settings
from .exceptions import BrokerUnavailable, ConfigurationError, StokerError

HINT = "See docs/howto/use-redis.md."


def check_broker(settings: Settings) -> Iterator[CheckMessage]:
    """Whether there is an adapter for it that can be used."""
    scheme = settings.broker.partition("://")[0]
    where = f'TASKS["{settings.alias}"]["OPTIONS"]["BROKER"]'
    if scheme not in ADAPTERS:
        known = ", ".join(f"{name}://..." for name in ADAPTERS)
        yield Error(
            f"{where} is {settings.broker!r}, but there is no such kind of broker.",
            hint=f"Write one of {known}.",
            id="stoker.E002",
        )
    elif settings.database not in connections:
        if not settings.broker.startswith("orm:"):
            where = f'TASKS["{settings.alias}"]["OPTIONS"]["DATABASE"]'
        yield Error(
            f"{where} names a database that DATABASES has not: {settings.database!r}.",
            hint=f"Name one of {', '.join(connections)}, or add {settings.database!r}.",
            id="stoker.E003",
        )
    else:
        try:
            adapter_for(settings).close()
        except ConfigurationError as error:
            yield Error(str(error), hint=HINT, id="stoker.E002")
        except BrokerUnavailable:  # of W009
            pass


def check_server(settings: Settings) -> Iterator[CheckMessage]:
    """Of brokers that have a server of their own, which is asked with ``check --database`` only."""
    if settings.broker.partition("://")[0] in ALONE:
        return
    try:
        weaknesses = adapter_for(settings).weaknesses()
    except StokerError as error:
        weaknesses = [str(error)]
    for sentence in weaknesses:
        yield Warning(sentence, hint=HINT, id="stoker.W009")
