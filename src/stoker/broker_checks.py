"""What is wrong, or risky, in ``BROKER``: a part of ``manage.py check``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

from django.conf import settings as project
from django.core.checks import CheckMessage, Error, Warning  # noqa: A004 - Django's own names
from django.db import connections

from .brokers import ADAPTERS, ALONE, adapter_for
from .conf import Settings
from .exceptions import BrokerUnavailable, ConfigurationError, StokerError

PAGES = ("mongodb", "disque", "ironmq", "sqs")
"""Beginnings of schemes that have a page of the documentation of their own; else it is Redis's."""


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
            yield Error(str(error), hint=_hint(settings), id="stoker.E002")
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
        yield Warning(sentence, hint=_hint(settings), id="stoker.W009")


def check_caches(settings: Settings) -> Iterator[CheckMessage]:
    """Whether a cache is in the Redis database of the jobs: to clear it is to empty that
    (``FLUSHDB``), by Django's own backend and by django-redis."""
    ours = _redis_database(settings.broker, {})
    for name, cache in project.CACHES.items():
        locations = cache.get("LOCATION") or ()
        if isinstance(locations, str):
            locations = locations.replace(";", ",").split(",")
        options = cache.get("OPTIONS") or {}
        theirs = [_redis_database(str(one).strip(), options) for one in locations]
        if ours is not None and ours in theirs:
            yield Warning(
                f'CACHES["{name}"] is in the same Redis database as the jobs of '
                f'TASKS["{settings.alias}"]: clearing that cache deletes all jobs.',
                hint="Give one of them another number at the end of its URL, or another server.",
                id="stoker.W010",
            )


def _redis_database(url: str, options: Mapping[str, Any]) -> tuple[str, int, str] | None:
    """Host or path, port, number; None where it is not one server of Redis."""
    try:
        parts = urlsplit(url)
        port = parts.port or 6379
    except ValueError:  # said by others
        return None
    if parts.scheme not in ("redis", "rediss", "unix"):
        return None
    is_file = parts.scheme == "unix"
    in_path = "" if is_file else parts.path.strip("/")
    number = parse_qs(parts.query).get("db", [in_path])[0] or str(options.get("db", 0))
    host = parts.path if is_file else (parts.hostname or "").replace("localhost", "127.0.0.1")
    return (host, port, number)


def _hint(settings: Settings) -> str:
    page = next((page for page in PAGES if settings.broker.startswith(page)), "redis")
    return f"See docs/howto/use-{page}.md."
