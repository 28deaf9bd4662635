"""The app with Django Q's label, and with migrations of the same names."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate

FIRST = "0001_initial"


class HistoryConfig(AppConfig):
    name = "stoker.contrib.django_q.history"
    label = "django_q"
    verbose_name = "Django Q (tables of before)"
    default_auto_field = "django.db.models.AutoField"

    def ready(self) -> None:
        """After the first migrate, import the Django Q rows that the project's migrations have
        inserted."""
        post_migrate.connect(_import_if_new, sender=self, dispatch_uid=self.name)


def _import_if_new(using: str, plan: Any = None, **_: Any) -> None:
    """Import rows that migrations have inserted into an empty database.

    In a database that Django Q has used, rows are imported by ``stoker import_django_q`` instead.
    """
    is_new = any(
        not is_backwards and (migration.app_label, migration.name) == (HistoryConfig.label, FIRST)
        for migration, is_backwards in plan or ()
    )
    if not is_new:
        return
    from stoker.contrib.django_q import conf
    from stoker.contrib.django_q.importing import import_tables, is_there
    from stoker.contrib.django_q.models import Schedule

    if is_there(Schedule, conf.database()):
        import_tables(using, conf.Conf.PREFIX, dry_run=False)
