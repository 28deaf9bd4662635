"""The tables of Django Q and Django Q 2, as they are found in a database. Of columns that a version
did not have yet, nothing is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.apps.registry import Apps
from django.db import connections, models

AT_ONCE = 500


class _Meta:
    apps = Apps()  # of its own: these are none of the project's models
    app_label = "django_q_old"
    managed = False


class OldTask(models.Model):
    id = models.CharField(max_length=32, primary_key=True)
    name = models.CharField(max_length=100)
    func = models.CharField(max_length=256)
    hook = models.CharField(max_length=256, null=True)  # noqa: DJ001 - as it is there
    args = models.TextField(null=True)  # noqa: DJ001 - as above
    kwargs = models.TextField(null=True)  # noqa: DJ001 - as above
    result = models.TextField(null=True)  # noqa: DJ001 - as above
    group = models.CharField(max_length=100, null=True)  # noqa: DJ001 - as above
    cluster = models.CharField(max_length=100, null=True)  # noqa: DJ001 - as above
    started = models.DateTimeField()
    stopped = models.DateTimeField()
    success = models.BooleanField(default=True)
    attempt_count = models.IntegerField(default=0)

    class Meta(_Meta):
        db_table = "django_q_task"

    def __str__(self) -> str:
        return str(self.name)


class OldSchedule(models.Model):
    name = models.CharField(max_length=100, null=True)  # noqa: DJ001 - as above
    func = models.CharField(max_length=256)
    hook = models.CharField(max_length=256, null=True)  # noqa: DJ001 - as above
    args = models.TextField(null=True)  # noqa: DJ001 - as above
    kwargs = models.TextField(null=True)  # noqa: DJ001 - as above
    schedule_type = models.CharField(max_length=2)
    minutes = models.IntegerField(null=True)
    repeats = models.IntegerField(default=-1)
    next_run = models.DateTimeField(null=True)
    cron = models.CharField(max_length=100, null=True)  # noqa: DJ001 - as above
    task = models.CharField(max_length=100, null=True)  # noqa: DJ001 - as above
    cluster = models.CharField(max_length=100, null=True)  # noqa: DJ001 - as above
    intended_date_kwarg = models.CharField(max_length=100, null=True)  # noqa: DJ001 - as above

    class Meta(_Meta):
        db_table = "django_q_schedule"

    def __str__(self) -> str:
        return str(self.name or self.func)


class OldPackage(models.Model):
    key = models.CharField(max_length=100)
    payload = models.TextField()
    lock = models.DateTimeField(null=True)

    class Meta(_Meta):
        db_table = "django_q_ormq"

    def __str__(self) -> str:
        return str(self.key)


def is_there(model: type[models.Model], alias: str) -> bool:
    """Whether the database has this table."""
    return model._meta.db_table in connections[alias].introspection.table_names()


def rows(model: type[models.Model], alias: str) -> Iterator[dict[str, Any]]:
    """All rows, in the order of their ids, as dicts of the columns that there are."""
    connection = connections[alias]
    with connection.cursor() as cursor:
        found = connection.introspection.get_table_description(cursor, model._meta.db_table)
    names = {column.name for column in found}
    present = [one.attname for one in model._meta.concrete_fields if one.column in names]
    after: Any = None
    while True:
        later = model._base_manager.using(alias).order_by("pk")
        if after is not None:
            later = later.filter(pk__gt=after)
        part = list(later.values(*present)[:AT_ONCE])
        yield from part
        if len(part) < AT_ONCE:
            return
        after = part[-1]["id"]
