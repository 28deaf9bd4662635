"""A pusher on SQLite is notified of writes by the kernel, and polls if it is not."""

from __future__ import annotations

import select
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from django.db import connections

from stoker.store import wake as sqlite_wake
from stoker.store.wake import LOOK_SECONDS, DataVersion, Writes

from tests.app.models import Account

pytestmark = [pytest.mark.sqlite, pytest.mark.django_db(transaction=True)]

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")
PATIENCE_SECONDS = 120.0


@pytest.fixture
def wake() -> Iterator[DataVersion]:
    """Give the wake of a pusher, with nothing to report."""
    with closing(DataVersion("default")) as made:
        settle(made)
        yield made


def settle(wake: DataVersion) -> None:
    """Wait until it reports nothing and relies on the kernel again."""
    while wake.is_due() or (wake.is_told and wake.max_sleep_seconds is not None):
        pass


def commit() -> None:
    """Commit on another connection."""

    def write() -> None:
        Account.objects.create()
        connections.close_all()

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()


def comes(condition: Callable[[], bool]) -> bool:
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        if condition():
            return True
    return False


@on_linux
def test_commit_of_another_connection_is_reported(wake: DataVersion) -> None:
    assert wake.is_told
    assert wake.max_sleep_seconds is None
    for _ in range(3):
        commit()
        assert select.select([wake.fileno()], [], [], PATIENCE_SECONDS)[0]
        assert comes(wake.is_due)
        settle(wake)


@on_linux
def test_wake_polls_for_a_while_after_a_report(wake: DataVersion) -> None:
    """The kernel reports a write before its commit, and a commit is many writes."""
    commit()
    while wake.is_due():
        pass
    assert wake.max_sleep_seconds is not None
    assert wake.fileno() is None
    settle(wake)
    assert wake.fileno() is not None


@on_linux
def test_new_connection_is_watched(wake: DataVersion) -> None:
    connections["default"].close()
    settle(wake)
    commit()
    assert select.select([wake.fileno()], [], [], PATIENCE_SECONDS)[0]
    assert comes(wake.is_due)


@on_linux
def test_wake_without_reports_polls(wake: DataVersion, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_wake, "DEAF_SECONDS", -1.0)
    monkeypatch.setattr(Writes, "take_reports", lambda _: False)
    commit()
    assert wake.is_due()
    assert not wake.is_told
    assert wake.fileno() is None
    assert wake.max_sleep_seconds == LOOK_SECONDS
    commit()
    assert wake.is_due()
    assert not wake.is_due()


@on_linux
def test_commit_between_reading_reports_and_polling_does_not_stop_listening(
    wake: DataVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes after a long silence. One missed report must not lead to polling for ever."""
    listened: list[bool] = []

    def listen_just_before(writes: Writes, take: Any = Writes.take_reports) -> bool:
        listened.append(take(writes))
        if len(listened) == 1:
            commit()
        return listened[-1]

    monkeypatch.setattr(Writes, "take_reports", listen_just_before)
    wake._heard_at -= sqlite_wake.DEAF_SECONDS + 1
    assert wake.is_due()
    assert listened == [False, True]
    assert wake.is_told
    settle(wake)
    assert wake.fileno() is not None


def test_wake_polls_without_inotify(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_wake, "_open_writes", lambda: None)
    with closing(DataVersion("default")) as wake:
        settle(wake)
        commit()
        assert wake.is_due()
        assert wake.fileno() is None
        assert wake.max_sleep_seconds == LOOK_SECONDS
