"""The app config, which connects signals, checks, reporters and logging when Django starts."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

from django.apps import AppConfig, apps
from django.conf import settings
from django.core import checks
from django.core.signals import setting_changed
from django.db import router
from django.db.backends.signals import connection_created

from stoker.tasks.decorator import own_backends

from .compat import TASKS_APP
from .exceptions import ConfigurationError


class StokerConfig(AppConfig):
    name = "stoker"
    verbose_name = "Stoker"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Connect logging, checks, reporters and the tuning of SQLite."""
        from .checks import check_api, check_databases, check_schedules, check_tasks
        from .reporters import logs

        # In a project that has not loaded a module of tasks yet, no other code imports these.
        import_module(f"{TASKS_APP}.signals")
        import_module(f"{TASKS_APP}.checks")
        logs.install()
        checks.register(check_api)
        checks.register(check_databases, checks.Tags.database)
        checks.register(check_schedules)
        checks.register(check_tasks)
        _seat_reporters()
        setting_changed.connect(_seat_reporters, dispatch_uid="stoker.reporters")
        connection_created.connect(_tune, dispatch_uid="stoker.sqlite_tuning")


def _seat_reporters(*, setting: str = "TASKS", **_: Any) -> None:
    """Start the reporters. Their modules are imported only if ``TASKS`` names one."""
    if setting == "TASKS" and (_names_reporters() or "stoker.reporters.desk" in sys.modules):
        from .reporters.desk import check_reporters, desk

        checks.register(check_reporters)
        desk.open()


def _names_reporters() -> bool:
    entries = (getattr(settings, "TASKS", None) or {}).values()
    options = [entry.get("OPTIONS") for entry in entries if isinstance(entry, Mapping)]
    return any(isinstance(one, Mapping) and one.get("REPORTERS") for one in options)


def _tune(connection: Any, **_: Any) -> None:
    stores = _tuned_databases()
    if not stores:
        return
    from stoker.store.engines import engine_for

    if connection.alias in stores:
        engine_for(connection).tune(connection)
    elif router.allow_migrate(connection.alias, "stoker", model_name="outgoing"):
        engine_for(connection).tune_outbox(
            connection, apps.get_model("stoker.Outgoing")._meta.db_table
        )


def _tuned_databases() -> set[str]:
    """Return the stores of all backends of Stoker with ``SQLITE_TUNING``."""
    aliases = set()
    for backend in own_backends().values():
        with suppress(ConfigurationError):  # `manage.py check` says what is wrong
            if backend.settings.sqlite_tuning:
                aliases.add(backend.settings.database)
    return aliases
