"""What the sentinel does after SIGTERM and SIGINT, with other requests to stop before or after."""

import signal
import time
from collections.abc import Iterator

import pytest

from stoker.cluster.plan import Plan
from stoker.cluster.sentinel import Sentinel

pytestmark = pytest.mark.unit


@pytest.fixture
def sentinel() -> Iterator[Sentinel]:
    sentinel = Sentinel(Plan())
    sentinel._wake_reader.setblocking(False)
    yield sentinel
    for end in (sentinel._wake_reader, sentinel._wake_writer):
        end.close()
    sentinel.board.remove()


def receive(sentinel: Sentinel, number: int) -> None:
    sentinel._signals.append(number)
    sentinel._obey_signals()


def is_hurried(sentinel: Sentinel) -> bool:
    """Return whether running jobs are to be interrupted at once."""
    assert sentinel.stop_at is not None
    return sentinel.stop_at <= time.monotonic()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_second_signal_interrupts_running_jobs(sentinel: Sentinel, number: int) -> None:
    receive(sentinel, number)
    assert not is_hurried(sentinel)
    receive(sentinel, signal.SIGTERM)
    assert is_hurried(sentinel)


@pytest.mark.parametrize("request_to_stop", ["stop_requested", "drained"])
def test_first_signal_after_another_request_to_stop_interrupts_nothing(
    sentinel: Sentinel, request_to_stop: str
) -> None:
    for _ in range(2):  # a new pusher may send it again
        sentinel._hear(None, (request_to_stop,))  # type: ignore[arg-type] # of any process
    receive(sentinel, signal.SIGTERM)
    assert not is_hurried(sentinel)
    receive(sentinel, signal.SIGTERM)
    assert is_hurried(sentinel)


def test_signal_makes_the_stop_for_a_reload_final(sentinel: Sentinel) -> None:
    sentinel.reload("a file has changed")
    receive(sentinel, signal.SIGTERM)
    assert not sentinel.reload_requested
    assert not is_hurried(sentinel)
    receive(sentinel, signal.SIGTERM)
    assert is_hurried(sentinel)
