"""The settings in ``Q_CLUSTER``, the same settings under Django Q's names (``Conf``), and the
backend that the shim uses."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from django.conf import settings as django_settings
from django.utils.module_loading import import_string

from stoker.backend import StokerBackend
from stoker.compat import DEFAULT_TASK_QUEUE_NAME, task_backends
from stoker.conf import Settings, option_fields, settings_for
from stoker.tasks.decorator import own_backends

from .translation import CACHED_SECONDS, entry_of, max_attempts, read_cluster

logger = logging.getLogger("stoker")
"""Django Q's name for the logger. Its level and handlers are those of Stoker's."""

OWN = "django_q"
"""Alias of the backend that is derived from Q_CLUSTER if the project has other backends."""


DEFAULT_ATTEMPTS = option_fields()["MAX_ATTEMPTS"].default


def configured() -> Mapping[str, Any]:
    """Return Q_CLUSTER as written."""
    found = getattr(django_settings, "Q_CLUSTER", None)
    return found if isinstance(found, Mapping) else {}


def given() -> dict[str, Any]:
    """Return the settings of Q_CLUSTER that apply in this process."""
    return read_cluster(configured())


_derived: set[str] = set()
"""Alias of the backend that was derived from Q_CLUSTER, if any."""


def install() -> None:
    """Add a backend derived from Q_CLUSTER, if TASKS has none of Stoker's.

    Its alias is "default" if the project has not set TASKS, else "django_q". A further call
    rebuilds it with the current Q_CLUSTER_NAME.
    """
    for known in _derived:
        _put(known, {**django_settings.TASKS, known: entry_of(configured())})
        return
    lazy: Any = django_settings
    is_set = lazy.is_overridden("TASKS")
    tasks: dict[str, Any] = dict(django_settings.TASKS) if is_set else {}
    if is_set and any(isinstance(entry, Mapping) and _is_own(entry) for entry in tasks.values()):
        return
    alias = OWN if is_set and "default" in tasks else "default"
    _derived.add(alias)
    _put(alias, {**tasks, alias: entry_of(configured())})


def _put(alias: str, tasks: dict[str, Any]) -> None:
    django_settings.TASKS = tasks
    settings_for.cache_clear()
    # Reset Django's cached backends, as Django does when a test changes the setting.
    backends: Any = task_backends
    backends._settings = backends.settings = tasks
    if hasattr(backends._connections, alias):
        del backends[alias]


def _is_own(entry: Mapping[str, Any]) -> bool:
    try:
        kind = import_string(str(entry.get("BACKEND")))
    except ImportError:
        return False
    return isinstance(kind, type) and issubclass(kind, StokerBackend)


def alias() -> str:
    """Return the alias in TASKS of the backend that the shim uses."""
    found = own_backends()
    for name in (OWN, "default", *found):
        if name in found:
            return name
    return "default"


def settings() -> Settings:
    """Return the settings of the backend that the shim uses."""
    return settings_for(alias())


def database() -> str:
    """Return the alias of the database that contains the shim's tables."""
    try:
        return settings().database
    except Exception:  # noqa: BLE001 - a query set may be made before anything is configured
        return "default"


def queue(cluster: str | None = None) -> str:
    """Return the queue of a cluster; None = the cluster of this process."""
    return cluster or _served(given())


def main_queue() -> str:
    """Return the queue of the main cluster, whatever the cluster of this process is."""
    return _served(read_cluster(configured(), ""))


def _served(given: Mapping[str, Any]) -> str:
    """Return the queue of the cluster with these settings, or one that the backend serves."""
    served = settings().queues
    wanted = str(given["cluster_name"]) if configured() else DEFAULT_TASK_QUEUE_NAME
    return wanted if not served or wanted in served else served[0]


def limits_of(queue: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``timeout`` and ``max_attempts`` of a job in this queue, as options of a task.

    As in Django Q, they are those of the cluster that serves the queue, not those of the process
    that enqueues the job. If TASKS has a backend of Stoker's, the limits are set there.

    Args:
        options: ``timeout`` and ``ack_failure`` of the call; None = as in the cluster.
    """
    timeout, ack_failure = options.get("timeout"), options.get("ack_failure")
    limits: dict[str, Any] = {}
    if _derived:
        given = read_cluster(configured(), queue)
        if ack_failure is not None:
            given["ack_failures"] = ack_failure
        attempts = max_attempts(given)
        limits["timeout"] = math.inf if given.get("timeout") is None else given["timeout"]
        limits["max_attempts"] = DEFAULT_ATTEMPTS if attempts is None else attempts
    elif ack_failure:
        limits["max_attempts"] = 1
    return limits if timeout is None else {**limits, "timeout": timeout}


def cached_seconds(cached: Any) -> float | None:
    """Return how long a result stays in the cache; None = it is not cached."""
    if cached is True:
        return CACHED_SECONDS
    return float(cached) if cached else None


CONF_KEYS: dict[str, tuple[str, Any]] = {
    "ACK_FAILURES": ("ack_failures", False),
    "BULK": ("bulk", 1),
    "CACHE": ("cache", "default"),
    "CACHED": ("cached", False),
    "CATCH_UP": ("catch_up", True),
    "COMPRESSED": ("compress", False),
    "GUARD_CYCLE": ("guard_cycle", 0.5),
    "LABEL": ("label", "Django Q"),
    "LOG_LEVEL": ("log_level", "INFO"),
    "MAX_ATTEMPTS": ("max_attempts", 0),
    "MAX_RSS": ("max_rss", None),
    "POLL": ("poll", 0.2),
    "RECYCLE": ("recycle", 500),
    "RETRY": ("retry", 60),
    "SAVE_LIMIT": ("save_limit", 250),
    "SAVE_LIMIT_PER": ("save_limit_per", None),
    "SCHEDULER": ("scheduler", True),
    "SYNC": ("sync", False),
    "TIMEOUT": ("timeout", None),
    "TIME_ZONE": ("time_zone", None),
}
"""Name in Django Q's ``Conf`` -> key of Q_CLUSTER, and Django Q's default."""


class _Conf:
    """The settings in Q_CLUSTER under the names that Django Q's ``Conf`` has."""

    def __getattr__(self, name: str) -> Any:
        if name not in CONF_KEYS:
            raise AttributeError(f"Conf has no {name}. Read it from settings.Q_CLUSTER.", name=name)
        key, default = CONF_KEYS[name]
        return given().get(key, default)

    @property
    def WORKERS(self) -> int:  # noqa: N802 - Django Q's name
        return settings().workers

    @property
    def QUEUE_LIMIT(self) -> int:  # noqa: N802 - as above
        return int(given().get("queue_limit") or self.WORKERS**2)

    @property
    def PREFIX(self) -> str:  # noqa: N802 - as above
        return str(given()["name"])

    @property
    def CLUSTER_NAME(self) -> str:  # noqa: N802 - as above
        return queue()

    @property
    def ORM(self) -> str:  # noqa: N802 - as above
        return database()


Conf = _Conf()
