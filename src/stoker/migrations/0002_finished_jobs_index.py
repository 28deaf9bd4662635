"""Add the index for clean-up and lists of finished jobs. It has only these, where the database has
partial indexes (a conditional index in the model would warn on the others)."""

from django.apps.registry import Apps as StateApps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

NAME = "stoker_job_finished"


def add(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    partial = schema_editor.connection.features.supports_partial_indexes
    where = " WHERE status IS NOT NULL" if partial else ""
    schema_editor.execute(
        f"CREATE INDEX {NAME} ON {schema_editor.quote_name('stoker_job')}"
        f" (status, finished_at, id){where}"
    )


def remove(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    on_table = "" if schema_editor.connection.vendor != "mysql" else " ON stoker_job"
    schema_editor.execute(f"DROP INDEX {NAME}{on_table}")


class Migration(migrations.Migration):
    atomic = False  # MariaDB and MySQL cannot take DDL back
    dependencies = [("stoker", "0001_initial")]
    operations = [migrations.RunPython(add, remove)]
