"""The app that has Django Q's label, and migrations of the names that Django Q's have."""

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
        """Take over what migrations of the project write into tables that are new."""
        post_migrate.connect(_import_if_new, sender=self, dispatch_uid=self.name)


def _import_if_new(using: str, plan: Any = None, **_: Any) -> None:
    """Copy the rows that migrations have made in a database that was empty: those of a database
    that Django Q has used are copied by ``stoker import_django_q``, when somebody says so."""
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
