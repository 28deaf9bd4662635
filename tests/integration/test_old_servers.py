"""Servers whose versions lack statements that Stoker needs."""

import pytest
from django.db import connection

from stoker.checks import check_databases
from stoker.cluster.plan import Plan
from stoker.management.run import _found

pytestmark = [pytest.mark.mariadb, pytest.mark.django_db(transaction=True)]


@pytest.mark.parametrize(
    ("is_mariadb", "version", "sentence"),
    [
        (True, (10, 5, 29), "is MariaDB 10.5.29, and Stoker needs 10.6 or later."),
        (False, (8, 0, 12), "is MySQL 8.0.12, and Stoker needs 8.0.13 or later."),
        (True, (10, 6, 0), ""),
        (False, (8, 0, 13), ""),
    ],
)
def test_old_server_is_refused(
    *, is_mariadb: bool, version: tuple[int, ...], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "mysql_is_mariadb", is_mariadb)
    monkeypatch.setattr(connection, "mysql_version", version)
    monkeypatch.setattr("stoker.store.statements.set_deadlines", lambda _: None)
    errors = [one.msg for one in check_databases(databases=["default"]) if one.id == "stoker.E005"]
    assert errors == ([f"The database 'default' {sentence}"] if sentence else [])
    start = _found(Plan())
    assert (start.is_fit, start.sentence) == ((False, errors[0]) if sentence else (True, ""))
