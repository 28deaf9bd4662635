"""Change a limit while jobs run."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db import transaction

from stoker.brokers.adapters import broker_for
from stoker.conf import Settings, settings_for
from stoker.exceptions import ConfigurationError
from stoker.models import GuardKey, Need
from stoker.store.engines import engine_of
from stoker.store.engines.sessions import explained
from stoker.store.transactions import after_commit
from stoker.store.turns import call_next
from stoker.store.written import database_now_us
from stoker.tasks.guards import MOST
from stoker.tasks.task import Task

from .keys import id_and_name


def set_limit(key: str | Task[..., Any], n: int | None, *, backend: str = "default") -> None:
    """Override how many jobs with ``limit=Limit(..., key)`` may run at once. The override replaces
    the ``n`` of the tasks.

    Running jobs go on. Blocked jobs that now fit become ready.

    A key may be set before the first job has it, so a misspelt key is accepted, too. The page of
    the guard says that no job has used the key yet.

    Args:
        key: the text of the limit's key, as in ``"tenant:7"``; or a task, whose limit has no key.
        n: maximum number of running jobs; 0 = none may start; None = remove the override.
        backend: an alias in ``TASKS``.

    Raises:
        TypeError, ValueError: an argument cannot be used.
        ConfigurationError: the backend's broker does not support guards.
        BrokerUnavailable, NotMigrated: the limit could not be stored.
    """
    if n is not None and (type(n) is not int or not 0 <= n <= MOST):
        raise ValueError(f"n={n!r}: write a whole number from 0 to {MOST:,}, or None.")
    key_id, name = _key(key)
    if n is not None and isinstance(key, Task):
        _refuse_without_limit(key)
    settings = settings_for(backend)
    if not broker_for(settings).capabilities.guards:
        raise ConfigurationError(
            f"The broker of {backend!r}, {settings.broker}, does not support guards, so there is "
            "no limit to set: name the backend whose jobs have it."
        )
    override_limit(settings, key_id, name, n)


def override_limit(settings: Settings, key_id: UUID, name: str, n: int | None) -> int | None:
    """Override the limit with this id; None = remove the override. Return the previous override.

    Raises:
        BrokerUnavailable, NotMigrated: the limit could not be stored.
    """
    alias = settings.database
    keys = GuardKey.objects.using(alias)
    deciding = engine_of(alias).deciding_at_once
    with explained(alias), deciding(), transaction.atomic(using=alias):
        row = None
        while row is None:  # upkeep may delete an unused key before it is locked
            fence = database_now_us(alias)
            key = GuardKey(id=key_id, kind=Need.Kind.LIMIT.value, name=name, fence=fence)
            keys.bulk_create([key], ignore_conflicts=True)
            row = keys.lock([key_id]).get(key_id)
        before, row.places_set = row.places_set, n
        row.save(using=alias, update_fields=["places_set"])
        holders = Need.objects.using(alias).holders([key_id])[key_id]
        queues = call_next(alias, row, max(0, row.room - len(holders)))
        if queues:
            broker = broker_for(settings)
            after_commit(alias, lambda: broker.wake_up(queues))
    return before


def _key(key: Any) -> tuple[UUID, str]:
    if not isinstance(key, str | Task):
        raise TypeError(
            "key: write the value of the limit's key, as in set_limit('tenant:7', 3), or the task "
            f"whose limit has no key; this is of type {type(key).__name__}."
        )
    if isinstance(key, str) and (not key or "{" in key):
        raise ValueError(
            f"key={key!r}: write the value of the key for a job, as in set_limit('tenant:7', 3)."
        )
    return id_and_name(Need.Kind.LIMIT.value, key)


def _refuse_without_limit(task: Task[..., Any]) -> None:
    """Raise ValueError if the task has no limit without a key."""
    limits: Any = task.limit or ()  # the check of the option has made it a tuple
    if any(limit.key is None for limit in limits):
        return
    path = task.module_path
    if limits:
        raise ValueError(
            f"The limit of {path} has a key: write the value of the key for a job instead of the "
            "task, as in set_limit('tenant:7', 3)."
        )
    raise ValueError(f"{path} has no limit: declare it with @task(limit=Limit(...)).")
