"""System checks of Stoker's settings, for ``manage.py check``.

=========== ================================================================================
Id          Meaning
=========== ================================================================================
stoker.E001 An option under ``TASKS`` is unknown or has a wrong value.
stoker.E002 ``BROKER`` names an unknown kind of broker, or one that cannot be used here.
stoker.E003 ``BROKER`` or ``DATABASE`` names a database that is missing in ``DATABASES``.
stoker.E004 ``stoker`` is not in ``INSTALLED_APPS``. Only if Django's tasks are imported.
stoker.E005 Stoker does not support this kind or version of database, or its columns of ids.
stoker.E006 ``DATABASE_ROUTERS`` keep Stoker's tables out of the database of ``BROKER``.
stoker.E007 Two backends share queues in one database but cannot open each other's packages.
stoker.E008 An option under ``STOKER_API`` is unknown or has a wrong value.
stoker.E009 A declared schedule is invalid, or two have the same name.
stoker.E010 A reporter under ``REPORTERS`` cannot be loaded, or not with these options.
stoker.E011 ``RESULTS`` names a cache or a server that does not exist or cannot keep results.
stoker.E012 Two aliases in ``DATABASES`` that can write are the SQLite file of the store.
stoker.E013 Two backends with different databases take the same jobs from one broker.
stoker.W001 Stoker's tables are missing or out of date.
stoker.W002 ``django_tasks`` is not in ``INSTALLED_APPS``, on a Django that needs it.
stoker.W003 A lease may end before a live cluster has extended it.
stoker.W004 A call to the database may take longer than a lease.
stoker.W005 Packages are pickled.
stoker.W006 SQLite is not tuned, neither by Stoker nor by ``DATABASES``.
stoker.W007 The transaction isolation level is not "read committed".
stoker.W008 Modules of tasks cannot be imported, so their schedules are unknown.
stoker.W009 The server of ``BROKER`` may lose jobs as configured, or does not answer.
stoker.W010 A cache is in the Redis database of ``BROKER``: clearing it would delete all jobs.
stoker.W011 A task has ``retry_on``, ``give_up_on`` or ``backoff``, but only one attempt.
stoker.W012 ``DATABASE`` has no effect: ``BROKER`` is another one, or ``orm://default`` if unset.
stoker.W013 The server of the store is not configured as Stoker needs it.
stoker.W014 ``ATOMIC_REQUESTS`` lets each request wait for all others that use the SQLite store.
stoker.W015 No backend in ``TASKS`` is Stoker's, so no cluster runs any task.
=========== ================================================================================
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

from django.apps import apps
from django.conf import settings as project
from django.core.checks import (
    CheckMessage,
    Error,
    Warning,  # noqa: A004 - Django's own names
)
from django.db import DatabaseError, connections, router

from stoker.brokers.adapters import ADAPTERS, ALONE, adapter_for, keeps_clusters_apart, name_of
from stoker.compat import TASKS_APP
from stoker.conf import Settings, problems, read_settings
from stoker.exceptions import BrokerUnavailable, ConfigurationError, StokerError, UnknownTask
from stoker.jobs.cached_results import why_not
from stoker.models.outbox import why_ambiguous
from stoker.schedules.declare import find_declared
from stoker.schedules.declare import problems as problems_of
from stoker.setting_values import api_problems
from stoker.store.engines import engine_of
from stoker.store.unapplied import unapplied_migrations
from stoker.tasks.decorator import own_backends
from stoker.tasks.options import options_of
from stoker.tasks.registry import tasks_of_apps


def check_broker(settings: Settings) -> Iterator[CheckMessage]:
    """Check that the broker has a usable adapter."""
    scheme = settings.broker.partition("://")[0]
    where = f'TASKS["{settings.alias}"]["OPTIONS"]["BROKER"]'
    if scheme not in ADAPTERS:
        known = ", ".join(f"{name}://..." for name in ADAPTERS)
        yield Error(
            f"{where} is {settings.shown_broker!r}, which is not a known kind of broker.",
            hint=f"Write one of {known}.",
            id="stoker.E002",
        )
    elif settings.database not in connections:
        if not settings.broker.startswith("orm:"):
            where = f'TASKS["{settings.alias}"]["OPTIONS"]["DATABASE"]'
        yield Error(
            f"{where} names a database that is not in DATABASES: {settings.database!r}.",
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
    """Check how the broker's server is configured. Runs only with ``check --database``."""
    scheme = settings.broker.partition("://")[0]
    if scheme in ALONE or scheme not in ADAPTERS:  # check_broker reports unknown ones
        return
    try:
        weaknesses = adapter_for(settings).weaknesses()
    except ConfigurationError:  # said by check_broker already
        return
    except StokerError as error:
        weaknesses = [str(error)]
    for sentence in weaknesses:
        yield Warning(sentence, hint=_hint(settings), id="stoker.W009")


def check_caches(settings: Settings) -> Iterator[CheckMessage]:
    """Check that no cache shares the Redis database of the jobs.

    Django's backend and django-redis clear a cache by ``FLUSHDB``, which would delete all jobs.
    """
    ours = _redis_database(settings.broker, {})
    for name, cache in project.CACHES.items():
        locations = cache.get("LOCATION") or ()
        if not isinstance(locations, list | tuple):  # it may be a Path
            locations = str(locations).replace(";", ",").split(",")
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
    """Return the server (host or socket path), port and database number, or None if the URL is not
    that of a single Redis server."""
    try:
        parts = urlsplit(url)
        port = parts.port or 6379
    except ValueError:  # other checks report it
        return None
    if parts.scheme not in ("redis", "rediss", "unix"):
        return None
    is_file = parts.scheme == "unix"
    in_path = "" if is_file else parts.path.strip("/")
    number = parse_qs(parts.query).get("db", [in_path])[0] or str(options.get("db", 0))
    host = parts.path if is_file else (parts.hostname or "").replace("localhost", "127.0.0.1")
    return (host, port, number)


def _hint(settings: Settings) -> str:
    scheme = settings.broker.partition("://")[0]
    page = "reference/settings.md" if scheme in ALONE else f"howto/use-{name_of(scheme)}.md"
    return f"See docs/{page}."


HEARTBEATS_PER_LEASE = 3


def check_backend(alias: str, params: Mapping[str, Any]) -> list[CheckMessage]:
    """Check one entry of ``TASKS``, without querying a database."""
    found: list[CheckMessage] = [
        Error(
            problem,
            hint="Every option is described in docs/reference/settings.md.",
            id="stoker.E001",
        )
        for problem in problems(alias, params)
    ]
    found += _installed()
    if not any(message.id == "stoker.E001" for message in found):
        settings = read_settings(alias, params)
        for check in CHECKS:
            found += check(settings)
        if "DATABASE" in params.get("OPTIONS", {}):
            found += _ignored_database(settings)
    return found


def check_databases(
    app_configs: Any = None, databases: Sequence[str] | None = None, **_: Any
) -> list[CheckMessage]:
    """Check the databases that ``manage.py check --database`` names, by querying them."""
    found: list[CheckMessage] = []
    if sys.argv[1:2] == ["migrate"]:  # do not ask for a migration during one
        return found
    seen = set()
    for backend in own_backends().values():
        try:
            settings = backend.settings
        except ConfigurationError:  # said by check_backend already
            continue
        alias = settings.database
        if alias in (databases or ()) and alias in connections and alias not in seen:
            seen.add(alias)
            found += _fit(alias)
        if alias in (databases or ()) and alias in connections:
            found += check_server(settings)
    return found


def check_api(**_: Any) -> list[CheckMessage]:
    """Check ``STOKER_API``."""
    hint = "Every option is described in docs/howto/http-api.md."
    return [Error(problem, hint=hint, id="stoker.E008") for problem in api_problems()]


def check_schedules(app_configs: Any = None, **_: Any) -> list[CheckMessage]:
    """Check the schedules that code and settings declare."""
    found: list[CheckMessage] = []
    for alias, backend in own_backends().items():
        if problems(alias, backend._params) or not apps.is_installed("stoker"):
            continue  # said by check_backend already
        try:
            declared = find_declared(backend.settings)
        except UnknownTask as error:
            sentence = f"A module of tasks cannot be imported. {error}"
            hint = (
                "Fix the import. Until then, clusters do not update the schedules of code and "
                "settings."
            )
            found.append(Warning(sentence, hint=hint, id="stoker.W008"))
            continue
        found += [
            Error(problem, hint="See docs/howto/schedules.md.", id="stoker.E009")
            for problem in problems_of(backend.settings, declared)
        ]
    return found


def check_tasks(**_: Any) -> list[CheckMessage]:
    """Check the tasks in the modules named ``tasks`` of all apps, and that a backend takes them."""
    backends = own_backends()
    if not backends:
        setting = 'TASKS = {"default": {"BACKEND": "stoker.backend.StokerBackend"}}'
        return [
            Warning("No backend in TASKS is Stoker's.", hint=f"Set {setting}.", id="stoker.W015")
        ]
    tasks = tasks_of_apps()
    return [
        Warning(
            f"{path} has {names}, but only one attempt: nothing is retried.",
            hint="Set max_attempts to 2 or more, or remove these options.",
            id="stoker.W011",
        )
        for alias, backend in backends.items()
        if not problems(alias, backend._params)
        for path, task in sorted(tasks.items())
        if task.backend == alias
        and options_of(task, backend.settings).max_attempts == 1
        and (names := " and ".join(name for name in FOR_RETRIES if getattr(task, name, None)))
    ]


FOR_RETRIES = ("retry_on", "give_up_on", "backoff")
"""Options of a task that have no effect without a second attempt."""


def _installed() -> Iterator[CheckMessage]:
    if TASKS_APP == "django_tasks" and not apps.is_installed("django_tasks"):
        yield Warning(
            "'django_tasks', which provides the tasks of this Django version, is not in "
            "INSTALLED_APPS.",
            hint="Add 'django_tasks' to INSTALLED_APPS.",
            id="stoker.W002",
        )


def _database(settings: Settings) -> Iterator[CheckMessage]:
    alias = settings.database
    if alias not in connections:
        return
    connection = connections[alias]
    if not engine_of(alias).is_supported:
        yield Error(
            f"Stoker cannot keep jobs in the database {alias!r}: it is {connection.display_name}.",
            hint="Keep them in PostgreSQL, MySQL, MariaDB or SQLite 3.35 or later: BROKER = 'orm://ALIAS'.",
            id="stoker.E005",
        )
    elif not router.allow_migrate_model(alias, apps.get_model("stoker", "Job")):
        yield Error(
            f"DATABASE_ROUTERS keep Stoker's tables out of the database {alias!r}, which BROKER "
            "names.",
            hint=f"Let allow_migrate({alias!r}, 'stoker') return True, or name another database in "
            "BROKER.",
            id="stoker.E006",
        )
    yield from _isolation(alias)


def _ignored_database(settings: Settings) -> Iterator[CheckMessage]:
    """Check that an ``orm://`` broker does not override ``DATABASE``."""
    if settings.store != settings.database:
        yield Warning(
            f'TASKS["{settings.alias}"]["OPTIONS"]["DATABASE"] is {settings.store!r}, but has no '
            f"effect: everything is in the database {settings.database!r}, because BROKER is "
            f"{settings.shown_broker!r}.",
            hint=f"Remove DATABASE, or write BROKER = 'orm://{settings.store}'.",
            id="stoker.W012",
        )


def _isolation(alias: str) -> Iterator[CheckMessage]:
    options = connections[alias].settings_dict["OPTIONS"]
    if not engine_of(alias).has_isolation_levels or "isolation_level" not in options:
        return
    level = options["isolation_level"]
    name = str(getattr(level, "name", level)).lower().replace("_", " ")
    if name != "read committed":
        what = (
            "clusters would often have to repeat transactions. In a transaction that has begun "
            "before, result.wait() would not see the end of the job, and result.cancel() not its "
            "start."
        )
        if name == "read uncommitted":
            what = "a unique job may be left out because of another job that is never committed."
        yield Warning(
            f'DATABASES["{alias}"] isolates transactions as {name!r}: {what}',
            hint="Remove 'isolation_level' from its OPTIONS, or give Stoker its own alias.",
            id="stoker.W007",
        )


def _neighbours(settings: Settings) -> Iterator[CheckMessage]:
    """Check that backends that take the same jobs can open their packages, and record them in one
    database. Each pair is reported once."""
    for alias, backend in own_backends().items():
        if alias == settings.alias:
            return
        try:
            other: Settings = backend.settings
        except ConfigurationError:
            continue
        both = f'TASKS["{alias}"] and TASKS["{settings.alias}"]'
        if other.broker != settings.broker or settings.broker.startswith("memory:"):
            continue
        if other.cluster != settings.cluster and _share_queues(settings, other):
            yield Error(
                f"{both} have queues in common on "
                f"{settings.shown_broker}, but not the same CLUSTER: neither can open the other's "
                "packages.",
                hint="Give both the same CLUSTER, or QUEUES that differ.",
                id="stoker.E007",
            )
        if other.cluster == settings.cluster and _share_jobs(settings, other):
            yield Error(
                f"{both} take the same jobs from {settings.shown_broker}, and record them in "
                f"{other.database!r} or in {settings.database!r}, whichever cluster comes first.",
                hint="Give each its own CLUSTER, or both the same DATABASE.",
                id="stoker.E013",
            )


LESSORS = ("redis", "mongodb")
"""Brokers from which any cluster takes over ended leases, in all queues."""


def _share_queues(one: Settings, other: Settings) -> bool:
    return _meet(one, other) and not keeps_clusters_apart(one)


def _share_jobs(one: Settings, other: Settings) -> bool:
    """Return whether jobs of one backend may be recorded in the database of the other."""
    if one.database == other.database or _broker_name(one) == "orm":
        return False
    return _broker_name(one) in LESSORS or _meet(one, other)


def _meet(one: Settings, other: Settings) -> bool:
    return not one.queues or not other.queues or bool(set(one.queues) & set(other.queues))


def _broker_name(settings: Settings) -> str:
    scheme = settings.broker.partition("://")[0]
    return name_of(scheme) if scheme in ADAPTERS else ""


def _times(settings: Settings) -> Iterator[CheckMessage]:
    where = f'TASKS["{settings.alias}"]["OPTIONS"]'
    if settings.lease_seconds < HEARTBEATS_PER_LEASE * settings.heartbeat_seconds:
        yield Warning(
            f"{where}: LEASE_SECONDS ({settings.lease_seconds:g}) is less than "
            f"{HEARTBEATS_PER_LEASE} times HEARTBEAT_SECONDS ({settings.heartbeat_seconds:g}): a "
            "single late heartbeat may cost a cluster its jobs.",
            hint="Make leases longer, or heartbeats more frequent.",
            id="stoker.W003",
        )
    if settings.lease_seconds <= settings.database_seconds:
        yield Warning(
            f"{where}: DATABASE_SECONDS ({settings.database_seconds:g}) is not less than "
            f"LEASE_SECONDS ({settings.lease_seconds:g}): a lease may end while its cluster waits "
            "for the database.",
            hint="Make leases longer, or DATABASE_SECONDS shorter.",
            id="stoker.W004",
        )


def _serializer(settings: Settings) -> Iterator[CheckMessage]:
    if settings.serializer == "pickle":
        yield Warning(
            f'TASKS["{settings.alias}"]["OPTIONS"]["SERIALIZER"] is "pickle": anyone with '
            "SECRET_KEY and write access to the queue can run any code in the workers.",
            hint='Pass plain values and use "json", or silence this warning.',
            id="stoker.W005",
        )


def _sqlite(settings: Settings) -> Iterator[CheckMessage]:
    alias = settings.database
    if alias not in connections:
        return
    if problem := why_ambiguous(alias):
        yield Error(
            problem,
            hint="Remove one of the aliases, or let DATABASE_ROUTERS keep Stoker's tables out of "
            "the other one: allow_migrate() returns False.",
            id="stoker.E012",
        )
    engine, given = engine_of(alias), connections[alias].settings_dict
    if engine.has_one_writer and given["ATOMIC_REQUESTS"] and not engine.is_private:
        yield Warning(
            f'DATABASES["{alias}"] is SQLite with ATOMIC_REQUESTS: each request to a view is a '
            "writer until it ends, and all others wait for it.",
            hint="Remove ATOMIC_REQUESTS, and open transaction.atomic() where a view writes.",
            id="stoker.W014",
        )
    if not settings.sqlite_tuning and engine.needs_tuning(given["OPTIONS"]):
        yield Warning(
            f'DATABASES["{alias}"] is SQLite without journal_mode, or without "IMMEDIATE" or '
            '"EXCLUSIVE" as transaction_mode, and SQLITE_TUNING is off: several processes will '
            "fail with 'database is locked'.",
            hint="Set SQLITE_TUNING to True, or both in the OPTIONS of the database.",
            id="stoker.W006",
        )


def _fit(alias: str) -> Iterator[CheckMessage]:
    try:
        if reason := engine_of(alias).why_unusable():
            yield Error(reason, hint="See docs/reference/versions.md.", id="stoker.E005")
            return
        unapplied = unapplied_migrations(alias)
        weaknesses = engine_of(alias).weaknesses()
    except DatabaseError as error:
        yield _not_ready(alias, f"could not be queried for its tables ({error})")
        return
    if unapplied:
        yield _not_ready(alias, "does not have all of Stoker's tables yet")
    for sentence in weaknesses:
        yield Warning(sentence, hint="See docs/howto/run-in-production.md.", id="stoker.W013")


def _not_ready(alias: str, problem: str) -> CheckMessage:
    return Warning(
        f"The database {alias!r} {problem}: nothing can be enqueued.",
        hint=f"Run: python manage.py migrate --database {alias}",
        id="stoker.W001",
    )


def _results(settings: Settings) -> Iterator[CheckMessage]:
    where = f'TASKS["{settings.alias}"]["OPTIONS"]["RESULTS"]'
    name = settings.results_cache
    scheme = settings.broker.partition("://")[0]
    if settings.results == "redis" and (scheme not in ADAPTERS or name_of(scheme) != "redis"):
        yield Error(
            f'{where} is "redis", but BROKER does not name a Redis.',
            hint='Write "database", or "cache:NAME" for a cache in Redis.',
            id="stoker.E011",
        )
    if name is not None and (reason := why_not(name)):
        yield Error(
            f'{where} is "cache:{name}", but {reason}.',
            hint="Name a cache that every process shares, such as Redis or memcached; or "
            "'database'.",
            id="stoker.E011",
        )


CHECKS: tuple[Callable[[Settings], Iterable[CheckMessage]], ...] = (
    check_broker,
    check_caches,
    _database,
    _neighbours,
    _times,
    _serializer,
    _sqlite,
    _results,
)
