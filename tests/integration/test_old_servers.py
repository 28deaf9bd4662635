"""Servers whose versions lack something that Stoker needs."""

import pytest
from django.db import connection

from stoker.checks import check_databases
from stoker.cluster.plan import Plan
from stoker.management.run import _found

pytestmark = [pytest.mark.mariadb, pytest.mark.django_db(transaction=True)]

UNSORTED = (
    "which does not sort the ids of jobs by time: use MariaDB 10.6, or 10.10.7, 10.11.6, 11.0.4, "
    "11.1.3, 11.2.2 or a later version."
)


@pytest.mark.parametrize(
    ("is_mariadb", "version", "sentence"),
    [
        (True, (10, 5, 29), "is MariaDB 10.5.29, and Stoker needs 10.6 or later."),
        (False, (8, 0, 12), "is MySQL 8.0.12, and Stoker needs 8.0.13 or later."),
        (True, (10, 7, 8), f"is MariaDB 10.7.8, {UNSORTED}"),
        (True, (10, 10, 6), f"is MariaDB 10.10.6, {UNSORTED}"),
        (True, (10, 11, 5), f"is MariaDB 10.11.5, {UNSORTED}"),
        (True, (11, 0, 3), f"is MariaDB 11.0.3, {UNSORTED}"),
        (True, (11, 1, 2), f"is MariaDB 11.1.2, {UNSORTED}"),
        (True, (11, 2, 1), f"is MariaDB 11.2.1, {UNSORTED}"),
        (True, (10, 6, 0), ""),
        (True, (10, 6, 99), ""),
        (True, (10, 10, 7), ""),
        (True, (10, 11, 6), ""),
        (True, (11, 0, 4), ""),
        (True, (11, 3, 0), ""),
        (True, (12, 0, 1), ""),
        (False, (8, 4, 0), ""),
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
