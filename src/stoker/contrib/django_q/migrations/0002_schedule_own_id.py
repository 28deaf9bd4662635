"""Let a row of Schedule know Stoker's schedule by its id, which was found by its name before."""

from __future__ import annotations

from typing import Any

from django.db import migrations, models


def link(apps: Any, schema_editor: Any) -> None:
    """The names were ``django_q:ID``. They become the row's own when it is saved next."""
    alias = schema_editor.connection.alias
    rows = apps.get_model("stoker_django_q", "Schedule").objects.using(alias)
    for own in (
        apps.get_model("stoker", "Schedule")
        .objects.using(alias)
        .filter(name__startswith="django_q:")
    ):
        number = own.name.removeprefix("django_q:")
        if number.isdecimal():
            rows.filter(pk=int(number)).update(own_id=own.pk)


class Migration(migrations.Migration):
    dependencies = (("stoker_django_q", "0001_initial"),)

    operations = (
        migrations.AddField(
            model_name="schedule",
            name="own_id",
            field=models.UUIDField(editable=False, null=True),
        ),
        migrations.RunPython(link, migrations.RunPython.noop),
    )
