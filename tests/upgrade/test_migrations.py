"""The squashed migration, in new stores and in stores that have the migrations it replaces."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.migrations.loader import MigrationLoader
from django.test import override_settings

from stoker.checks import check_databases
from stoker.conf import settings_for
from stoker.exceptions import BrokerUnavailable
from stoker.inspect.doctor.examination import examine
from stoker.store.unapplied import unapplied_migrations

from tests.upgrade.databases import applied_migrations, migrate_one_by_one, new_database, schema

pytestmark = pytest.mark.django_db(transaction=True)

SQUASHED = "0001_squashed_0021_waits"
REPLACED = [name for _, name in MigrationLoader(None).disk_migrations["stoker", SQUASHED].replaces]


@pytest.fixture(autouse=True)
def _empty_database(tmp_path: Path) -> Iterator[None]:
    with new_database(tmp_path):
        yield


def migrate(app: str = "stoker", name: str = "") -> None:
    call_command("migrate", app, *([name] if name else []), verbosity=0)


def test_squashed_migration_makes_the_schema_of_those_it_replaces() -> None:
    migrate_one_by_one(REPLACED[-1])
    one_by_one = schema()
    migrate(name="zero")
    assert not schema()
    migrate(name=SQUASHED)
    assert schema() == one_by_one
    assert applied_migrations() == sorted([SQUASHED, *REPLACED])


@pytest.mark.parametrize(
    "last",
    [
        "0014_screens",
        pytest.param("0018_bulk_operations", marks=pytest.mark.slow),
        pytest.param("0021_waits", marks=pytest.mark.slow),
    ],
)
def test_store_with_old_migrations_becomes_like_a_new_one(last: str) -> None:
    migrate()
    applied, new = applied_migrations(), schema()
    migrate(name="zero")
    migrate_one_by_one(last)
    count = REPLACED.index(last) + 1
    assert applied_migrations() == REPLACED[:count]
    assert unapplied_migrations("default")[: len(REPLACED) - count] == REPLACED[count:]
    migrate()
    assert (applied_migrations(), schema()) == (applied, new)
    assert not unapplied_migrations("default")


@pytest.mark.sqlite
@pytest.mark.parametrize("stored", ["", "0014_screens"])
def test_models_need_no_further_migration(stored: str) -> None:
    if stored:
        migrate_one_by_one(stored)
    call_command("makemigrations", "stoker", "stoker_django_q", check=True, verbosity=0)


@pytest.mark.sqlite
@pytest.mark.parametrize(
    "stored", ["", "0014_screens", pytest.param("0018_bulk_operations", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    "named",
    ["0001_initial", pytest.param("0018_bulk_operations", marks=pytest.mark.slow), SQUASHED],
)
def test_migration_of_a_project_may_depend_on_old_and_new_names(
    stored: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / f"orders_{stored}_{named}"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "0001_initial.py").write_text(
        "from django.db import migrations\n"
        "class Migration(migrations.Migration):\n"
        f"    dependencies = [('stoker', {named!r})]\n"
        "    operations = [migrations.RunSQL('CREATE TABLE orders AS SELECT * FROM stoker_job')]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    if stored:
        migrate_one_by_one(stored)
    with override_settings(MIGRATION_MODULES={"testapp": folder.name}):
        migrate("testapp")
        migrate()
    assert not unapplied_migrations("default")


@pytest.mark.mariadb
def test_ids_of_another_server_are_refused_until_their_columns_have_the_type_uuid() -> None:
    if not connection.features.has_native_uuid_field:
        pytest.skip("Only MariaDB 10.7 and later have the type uuid.")
    migrate()
    assert [one.id for one in check_databases(databases=["default"])] == []
    statements = [
        "ALTER TABLE stoker_job MODIFY id char(32) NOT NULL",
        "ALTER TABLE stoker_ready MODIFY job_id char(32) NOT NULL",
    ]
    with connection.cursor() as cursor:
        for one in statements:
            cursor.execute(one)
    (error,) = check_databases(databases=["default"])
    assert error.id == "stoker.E005"
    assert (
        "2 columns of Stoker's ids have the type char(32), for example stoker_job.id" in error.msg
    )
    with pytest.raises(BrokerUnavailable, match="the type uuid on this server"):
        examine(settings_for())
    with connection.cursor() as cursor:
        cursor.execute(conversions())
        for (one,) in cursor.fetchall():
            cursor.execute(one)
    assert [one.id for one in check_databases(databases=["default"])] == []
    assert not examine(settings_for()).findings


def conversions() -> str:
    """Return the query of UPGRADING.md that lists the statements for the columns of ids."""
    text = (Path(__file__).parents[2] / "UPGRADING.md").read_text()
    return (
        text.partition("## Another server for the database")[2].split("```")[1].removeprefix("sql")
    )
