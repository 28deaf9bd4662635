"""New databases: their migrations, their schema, and the rows of an older version."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.db.models import BinaryField, DateTimeField, Field, FloatField, Model

AGE_SECONDS = 5400.0
"""How long ago the older version left its store: what was due in an hour is due, and what was due
in a day is not."""

SCHEMA = {
    # Without the order of the columns: SQLite moves a column that is altered to the end.
    "sqlite": """
        SELECT t.name, c.name, c.type, c."notnull", c.dflt_value, c.pk
        FROM sqlite_master AS t, pragma_table_info(t.name) AS c
        WHERE t.type = 'table' AND t.name LIKE 'stoker_%' ORDER BY 1, 2;

        SELECT t.name, i.name, i."unique", c.seqno, c.name, m.sql
        FROM sqlite_master AS t, pragma_index_list(t.name) AS i, pragma_index_info(i.name) AS c
        JOIN sqlite_master AS m ON m.name = i.name
        WHERE t.name LIKE 'stoker_%' ORDER BY 1, 2, 4
    """,
    "postgresql": """
        SELECT table_name, ordinal_position, column_name, column_default, is_nullable, data_type,
            character_maximum_length, is_identity
        FROM information_schema.columns WHERE table_name LIKE 'stoker_%' ORDER BY 1, 2;

        SELECT indexdef FROM pg_indexes WHERE tablename LIKE 'stoker_%' ORDER BY 1;

        SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
        WHERE conrelid::regclass::text LIKE 'stoker_%' ORDER BY 1, 2
    """,
}
"""The statements that read the schema of Stoker's tables. MariaDB and MySQL have a statement for
each table."""


@contextmanager
def new_database(folder: Path) -> Iterator[None]:
    """Make an empty database the default one, here and in the processes that a test starts."""
    usual = dict(connection.settings_dict)
    is_file = connection.vendor == "sqlite"
    name = str(folder / "new.sqlite3") if is_file else f"{usual['NAME']}_new"
    if not is_file:
        _execute(f"DROP DATABASE IF EXISTS {name}", f"CREATE DATABASE {name}")
    connection.close()
    connection.settings_dict["NAME"] = name
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(os.environ, "STOKER_TEST_DATABASES", json.dumps({"default": name}))
            yield
    finally:
        connection.close()
        connection.settings_dict.update(usual)
        if not is_file:
            _execute(f"DROP DATABASE {name}")


def migrate_one_by_one(name: str) -> MigrationLoader:
    """Apply the migrations up to this one as versions did that had no squashed one."""
    executor = MigrationExecutor(connection)
    executor.loader.replace_migrations = False
    executor.loader.build_graph()
    executor.migrate([("stoker", name)])
    for app, squashed in executor.loader.replacements:
        executor.recorder.record_unapplied(app, squashed)
    return executor.loader


def applied_migrations() -> list[str]:
    """Return the names of Stoker's migrations that the database has recorded."""
    recorded = MigrationRecorder(connection).applied_migrations()
    return sorted(name for app, name in recorded if app == "stoker")


def schema() -> list[tuple[object, ...]]:
    """Return the columns, indexes and constraints of Stoker's tables, as the database has them."""
    rows: list[tuple[object, ...]] = []
    with connection.cursor() as cursor:
        names = connection.introspection.table_names(cursor)
        show = ";".join(f"SHOW CREATE TABLE {one}" for one in names if "stoker_" in one)
        for statement in filter(None, SCHEMA.get(connection.vendor, show).split(";")):
            cursor.execute(statement)
            rows += cursor.fetchall()
    return rows


def load(path: Path) -> None:
    """Make the tables of an older version, and insert the rows that it left 90 minutes ago."""
    store = json.loads(path.read_text())
    loader = migrate_one_by_one(store["migration"])
    models = loader.project_state([("stoker", store["migration"])]).apps
    since = time.time() - AGE_SECONDS
    rows: dict[str, list[Model]] = {}
    for name, values in store["rows"]:
        model = models.get_model("stoker", name)
        moved = {
            column: _moved(value, since, model._meta.get_field(column))
            for column, value in values.items()
        }
        rows.setdefault(name, []).append(model(**moved))
    for name, found in rows.items():
        models.get_model("stoker", name).objects.bulk_create(found)


def _moved(value: Any, since: float, field: Field[Any, Any]) -> Any:
    match value, field:
        case str(), BinaryField():
            return value.encode("latin-1")
        case list(), _:
            return [_moved(one, since, field) for one in value]
        case str(), _ if re.fullmatch(r"@-?\d+\.\d+", value):
            moment = since + float(value[1:])
            match field:
                case DateTimeField():
                    return datetime.fromtimestamp(moment, UTC)
                case FloatField():
                    return moment
            return round(moment * 10**6)
    return value


def _execute(*statements: str) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
