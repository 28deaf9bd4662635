"""The app config that replaces ``django_q``, and its checks for ``manage.py check``.

================ ===============================================================================
Id               Meaning
================ ===============================================================================
django_q.E001    A key of ``Q_CLUSTER`` is unknown, has a wrong value, or names an unknown broker.
django_q.E002    Django Q itself comes before this app in ``INSTALLED_APPS``.
django_q.E003    A migration refers to Django Q's, and no installed app has its label.
django_q.W001    A key of ``Q_CLUSTER`` has no effect or a different one.
================ ===============================================================================
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from django.apps import AppConfig, apps
from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage, Error, Warning  # noqa: A004 - Django's own names
from django.core.exceptions import FieldDoesNotExist, ImproperlyConfigured
from django.db.models.signals import post_migrate
from django.utils.module_loading import import_string

from stoker.signals import post_spawn

from . import conf, signals
from .instances import allow_references
from .translation import problems

REFLECT = "stoker.contrib.django_q.models.schedule.reflect_unsaved"


class DjangoQConfig(AppConfig):
    name = "stoker.contrib.django_q"
    label = "stoker_django_q"
    default_auto_field = "django.db.models.AutoField"
    stoker_subcommands = ("stoker.contrib.django_q.importing.ImportDjangoQ",)
    """Subcommands that the app adds to ``manage.py stoker``."""
    stoker_upkeep = (REFLECT, "stoker.contrib.django_q.recording.prune")
    """Steps that the app adds to the upkeep of clusters."""

    def __init__(self, app_name: str, app_module: Any) -> None:
        super().__init__(app_name, app_module)
        self.verbose_name = conf.Conf.LABEL
        conf.install()  # here, before any module with tasks is imported
        allow_references()

    def import_models(self) -> None:
        """Import the models. Raises ImproperlyConfigured if the app ``stoker`` is missing."""
        if not apps.is_installed("stoker"):
            raise ImproperlyConfigured(
                "'stoker.contrib.django_q' is in INSTALLED_APPS, but 'stoker' is not: add it "
                "there, and run manage.py migrate."
            )
        super().import_models()

    def ready(self) -> None:
        """Register the checks, forward Stoker's signal of new processes, and let schedules run
        that migrations have inserted."""
        checks.register(check_q_cluster)
        post_spawn.connect(_tell_of_process, dispatch_uid=self.name)
        post_migrate.connect(_reflect_schedules, sender=self, dispatch_uid=self.name)


def _tell_of_process(role: str, number: int, **_: Any) -> None:
    name = f"{role} {number}" if role == "worker" else role
    signals.post_spawn.send_robust(signals.SENDER, proc_name=name)


def _reflect_schedules(using: str, apps: Any = apps, **_: Any) -> None:  # flush sends no apps
    try:
        apps.get_model("stoker", "Schedule")
        apps.get_model("stoker_django_q", "Schedule")._meta.get_field("own_id")
    except (LookupError, FieldDoesNotExist):
        return  # the tables are not (or no longer) as this version needs them
    if using == conf.database():
        import_string(REFLECT)(conf.settings())  # it is imported when the models can be


HISTORY = "stoker.contrib.django_q.history"
LABEL = re.compile(r"""["']django_q(["']|\.)""")


def check_q_cluster(app_configs: Any = None, **_: Any) -> list[CheckMessage]:
    """Check the settings of a project that comes from Django Q."""
    found: list[CheckMessage] = []
    names = [config.name for config in apps.get_app_configs()]
    if "django_q" in names and names.index("django_q") < names.index("stoker.contrib.django_q"):
        found.append(
            Error(
                "'django_q' is listed before 'stoker.contrib.django_q' in INSTALLED_APPS, so "
                "qcluster is Django Q's.",
                hint=f"Replace 'django_q' by {HISTORY!r}, which has migrations of the same names, "
                "or put it after 'stoker.contrib.django_q'. Its tables stay, and `manage.py stoker "
                "import_django_q` reads them.",
                id="django_q.E002",
            )
        )
    if "django_q" not in apps.app_configs:
        found += [
            Error(
                f"The migration {path} refers to the app 'django_q', which is not in "
                "INSTALLED_APPS.",
                hint=f"Add {HISTORY!r} there: it has migrations of the same names.",
                id="django_q.E003",
            )
            for path in _migrations_of_before()
        ]
    for problem in problems(getattr(settings, "Q_CLUSTER", {})):
        kind, code = (Error, "E001") if problem.is_error else (Warning, "W001")
        found.append(kind(problem.sentence, hint=problem.advice, id=f"django_q.{code}"))
    return found


def _migrations_of_before() -> Iterator[Path]:
    """Yield the project's migrations that refer to Django Q.

    The files are read, not imported, because their imports may no longer exist.
    """
    modules: dict[str, str | None] = getattr(settings, "MIGRATION_MODULES", {})
    for config in apps.get_app_configs():
        module = modules.get(config.label, f"{config.name}.migrations")
        if module is None or config.name.startswith("stoker."):
            continue
        try:
            spec = find_spec(module)
        except ImportError:
            continue
        for folder in (spec.submodule_search_locations if spec else None) or ():
            for path in sorted(Path(folder).glob("*.py")):
                if LABEL.search(path.read_text(errors="replace")):
                    yield path
