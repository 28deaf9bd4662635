"""Jobs with guards, drained in a test."""

from __future__ import annotations

import pytest

from stoker import Limit, Lock, Rate, fencing_number, task
from stoker.models import Need
from stoker.testing import drain, inline

pytestmark = pytest.mark.usefixtures("database")

seen: list[tuple[str, int]] = []


@task(lock=Lock("door"), limit=Limit(2, "house"), sequence="{name}")
def enter(name: str) -> None:
    seen.append((name, fencing_number()))


@task(rate=Rate("2/d"))
def call(name: str) -> None:
    seen.append((name, fencing_number()))


@pytest.fixture(autouse=True)
def _forget() -> None:
    seen.clear()


def test_guarded_jobs_run_in_turn_with_rising_fencing_numbers() -> None:
    enter.enqueue_many([((name,), {}) for name in ("alice", "bob", "alice")])
    assert len(drain().succeeded) == 3
    assert [name for name, _ in seen] == ["alice", "bob", "alice"]
    numbers = [number for _, number in seen]
    assert numbers == sorted(set(numbers))
    assert not Need.objects.exists()


def test_rate_limits_the_number_of_starts() -> None:
    call.enqueue_many([((str(number),), {}) for number in range(5)])
    assert len(drain()) == 2
    assert [name for name, _ in seen] == ["0", "1"]


def test_inline_applies_rates_only() -> None:
    with inline():
        for name in ("alice", "bob", "carol"):
            enter.enqueue(name)
    assert len(seen) == 3
    with inline():
        for name in ("alice", "bob", "carol"):
            call.enqueue(name)
    assert len(seen) == 3 + 2


def test_drained_jobs_have_a_readable_string() -> None:
    assert str(drain()) == "Nothing was due."
    enter.enqueue("alice")
    assert str(drain()) == "tests.testing.test_guards.enter('alice'), attempt 1: succeeded"
