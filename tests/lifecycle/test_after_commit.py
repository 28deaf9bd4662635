"""Callbacks after a commit that fail."""

from __future__ import annotations

import logging
from functools import partial

import pytest
from django.db import transaction

from stoker.store.transactions import after_commit

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.sqlite]


def fail(number: int) -> None:
    """Fail like a broker that is unreachable."""
    raise OSError(number)


def test_failing_callback_keeps_the_commit_and_the_next_callback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    done: list[str] = []
    with caplog.at_level(logging.ERROR), transaction.atomic():
        after_commit("default", partial(fail, 7))
        after_commit("default", lambda: done.append("next"))
    assert done == ["next"]
    assert "on_commit()" in caplog.text


def test_callback_without_a_transaction_runs_at_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        after_commit("default", partial(fail, 7))
    assert "on_commit()" in caplog.text
