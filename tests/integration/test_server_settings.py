"""Settings of MariaDB that only a server of the test's own may have."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from django.db import OperationalError, connections, transaction

from stoker.models import GuardKey
from stoker.store.engines import engine_of
from stoker.store.transactions import is_locked_out

from tests.integration.work import another_database
from tests.servers.mariadb import PrivateMariadb
from tests.servers.private import NotInstalledError

pytestmark = pytest.mark.mariadb

SETTINGS = {"innodb_rollback_on_timeout": "ON", "log_bin": "log", "binlog_format": "STATEMENT"}
"""Settings that Stoker warns of. ``binlog_format`` matters only with ``log_bin``."""


@pytest.fixture(scope="module")
def server(django_db_setup: None, django_db_blocker: Any) -> Iterator[dict[str, Any]]:
    """Start a server with these settings, and yield its entry for DATABASES."""
    try:
        with PrivateMariadb(**SETTINGS) as private, django_db_blocker.unblock():
            at = {"HOST": "127.0.0.1", "PORT": private.port, "USER": "root", "PASSWORD": ""}
            yield {**at, "NAME": "mysql"}
    except NotInstalledError as missing:
        pytest.skip(f"private mariadb: {missing}")


def test_settings_of_the_server_are_reported(server: dict[str, Any]) -> None:
    with another_database(**server) as alias:
        binlog, rollback = engine_of(alias).weaknesses()
    assert "set binlog_format to MIXED or ROW" in binlog
    assert "set innodb_rollback_on_timeout to OFF" in rollback


def test_transaction_ends_if_a_refused_lock_has_rolled_it_back(server: dict[str, Any]) -> None:
    """Otherwise a claim would go on without the locks that it had."""
    options = {"isolation_level": "read committed"}
    with (
        another_database(**server, OPTIONS=options) as alias,
        another_database(**server, OPTIONS=options) as other,
    ):
        with connections[alias].cursor() as cursor:
            cursor.execute("SET GLOBAL binlog_format = ROW")
        connections[alias].close()
        with connections[alias].schema_editor() as editor:
            editor.create_model(GuardKey)
        key = GuardKey(id=uuid4(), kind="lock", name="one", places=1)
        engine, keys = engine_of(alias), GuardKey.objects.using(alias)
        with transaction.atomic(using=other):
            key.save(using=other, force_insert=True)
            with pytest.raises(OperationalError) as refusal, transaction.atomic(using=alias):
                engine.keys_being_made(keys, [key.pk])
        assert is_locked_out(refusal.value)
