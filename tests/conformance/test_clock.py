"""The database's clock is right in every time zone of the server and the session."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from django.db import connection
from django.test import override_settings
from django.utils import timezone

from stoker.models import Deploy, Workflow
from stoker.store.written import MICROSECONDS, NOW_ON_MYSQL, database_now_us

from tests.servers.mariadb import PrivateMariadb

BERLIN = Path("/usr/share/zoneinfo/Europe/Berlin")
SUMMER_TIME_ENDED = 1_729_990_800
"""On 27 October 2024 at 1:00 UTC, Berlin's clocks went from 3:00 back to 2:00."""


@pytest.mark.django_db
def test_database_clock_agrees_with_this_host() -> None:
    before = time.time()
    now = database_now_us("default") / MICROSECONDS
    assert before - 0.002 <= now <= time.time() + 0.002


@pytest.mark.django_db
def test_database_clock_never_goes_back() -> None:
    seen = [database_now_us("default") for _ in range(50)]
    assert seen == sorted(seen)


@pytest.mark.postgres
@pytest.mark.django_db
def test_time_zone_of_a_session_does_not_change_the_clock() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET TIME ZONE 'Asia/Kathmandu'")
        assert abs(database_now_us("default") / MICROSECONDS - time.time()) < 60
        cursor.execute("SET TIME ZONE 'UTC'")


@pytest.fixture
def session_in_california() -> Iterator[None]:
    """Give the session of MariaDB or MySQL a zone of its own. Django sets that of PostgreSQL."""
    if connection.vendor != "mysql":
        yield
        return
    with connection.cursor() as cursor:
        cursor.execute("SET time_zone = '-08:00'")
        yield
        cursor.execute("SET time_zone = DEFAULT")


@pytest.fixture(
    params=[(True, None), (True, "Asia/Kathmandu"), (False, None)],
    ids=["aware", "aware, in the zone of the database", "naive"],
)
def _zones(request: pytest.FixtureRequest) -> Iterator[None]:
    """Set USE_TZ and the zone of the database."""
    use_tz, of_database = request.param
    patch = pytest.MonkeyPatch()
    patch.setitem(connection.settings_dict, "TIME_ZONE", of_database)
    with override_settings(USE_TZ=use_tz, TIME_ZONE="America/St_Johns"):
        yield
        # First, because the connection reads its zone when the settings change.
        patch.undo()


@pytest.mark.django_db
@pytest.mark.usefixtures("session_in_california", "_zones")
def test_moments_of_inserts_and_updates_are_right() -> None:
    workflow = Workflow(pk=uuid.uuid4(), backend="default")
    Workflow.objects.bulk_create([workflow])
    Workflow.objects.end(workflow.pk, Workflow.State.SUCCESSFUL)
    Deploy.objects.note("stoker", "host", "digest")
    stored = Workflow.objects.get()
    for moment in (stored.made_at, stored.finished_at, Deploy.objects.get().at):
        assert moment is not None
        assert abs(timezone.now() - moment) < timedelta(minutes=1)


@pytest.fixture
def mariadb_in_berlin(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> PrivateMariadb:
    """Start a server whose host has the time zone of Berlin."""
    if not BERLIN.exists():
        pytest.skip("this machine has no time zones (the Debian package tzdata)")
    monkeypatch.setenv("TZ", "Europe/Berlin")
    server: PrivateMariadb = request.getfixturevalue("private_mariadb")
    return server


@pytest.mark.mariadb
@pytest.mark.slow
def test_end_of_summer_time_does_not_change_the_clock(mariadb_in_berlin: PrivateMariadb) -> None:
    """Local time repeats an hour then; leases must not end an hour early or late."""
    from MySQLdb import connect

    port = urlsplit(mariadb_in_berlin.url).port
    assert port is not None
    with connect(host="127.0.0.1", port=port, user="root") as server, server.cursor() as cursor:
        cursor.execute("SELECT @@system_time_zone")
        assert cursor.fetchone()[0] in {"CET", "CEST"}
        for moment in range(SUMMER_TIME_ENDED - 4000, SUMMER_TIME_ENDED + 4001, 500):
            cursor.execute(f"SET timestamp = {moment}")
            cursor.execute(f"SELECT {NOW_ON_MYSQL}")
            assert cursor.fetchone()[0] == moment * MICROSECONDS
