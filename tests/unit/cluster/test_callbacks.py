"""Project code that is called in a thread beside the monitor and the scheduler."""

from collections.abc import Iterator
from threading import Event

import pytest

from stoker.cluster import callbacks as module
from stoker.cluster.callbacks import MOST_STUCK, Callbacks
from stoker.signals import event

PATIENCE_SECONDS = 60.0


@pytest.fixture
def told() -> Iterator[list[tuple[str, dict[str, object]]]]:
    found: list[tuple[str, dict[str, object]]] = []

    def note(name: str, facts: dict[str, object], **_: object) -> None:
        found.append((name, facts))

    event.connect(note)
    yield found
    event.disconnect(note)


class Hanging:
    """A call that returns when the test lets it."""

    def __init__(self) -> None:
        self.began, self.may_end = Event(), Event()

    def __call__(self) -> None:
        self.began.set()
        self.may_end.wait(PATIENCE_SECONDS)


@pytest.fixture
def hanging() -> Iterator[list[Hanging]]:
    calls = [Hanging() for _ in range(MOST_STUCK + 2)]
    yield calls
    for call in calls:
        call.may_end.set()


def test_calls_are_made_in_order() -> None:
    made: list[int] = []
    callbacks = Callbacks(lambda: None)
    for number in range(100):
        callbacks.put("hook", lambda number=number: made.append(number))
    callbacks.close(PATIENCE_SECONDS)
    assert made == list(range(100))


@pytest.mark.parametrize("error", [ValueError, SystemExit, GeneratorExit, KeyboardInterrupt])
def test_failing_call_is_reported_and_the_next_is_made(
    error: type[BaseException], told: list[tuple[str, dict[str, object]]]
) -> None:
    def fail() -> None:
        raise error

    made = Event()
    callbacks = Callbacks(lambda: None)
    callbacks.put("hook", fail)
    callbacks.put("hook", made.set)
    assert made.wait(PATIENCE_SECONDS)
    callbacks.close(PATIENCE_SECONDS)
    assert [name for name, _ in told] == ["callback_failed"]


def test_call_that_does_not_return_is_abandoned(
    hanging: list[Hanging], told: list[tuple[str, dict[str, object]]]
) -> None:
    made = Event()
    callbacks = Callbacks(lambda: None, limit_seconds=0.0)
    callbacks.put("hook", hanging[0])
    callbacks.put("hook", made.set)
    assert hanging[0].began.wait(PATIENCE_SECONDS)
    callbacks.look()
    assert made.wait(PATIENCE_SECONDS)
    assert [(name, facts["what"]) for name, facts in told] == [("callback_stuck", "hook")]
    callbacks.close(PATIENCE_SECONDS)


def test_number_of_abandoned_calls_is_limited(hanging: list[Hanging]) -> None:
    callbacks = Callbacks(lambda: None, limit_seconds=0.0)
    for call in hanging:
        callbacks.put("hook", call)
    for call in hanging[:-1]:
        assert call.began.wait(PATIENCE_SECONDS)
        callbacks.look()
    assert not hanging[-1].began.is_set()
    hanging[0].may_end.set()
    while not hanging[-1].began.is_set():
        callbacks.look()
    callbacks.close(0.0)


def test_full_queue_without_a_live_thread_drops_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread may have ended without a trace, for example in a forked process."""
    monkeypatch.setattr(module, "MOST_WAITING", 2)
    started: list[Callbacks] = []

    def end_at_once(self: Callbacks) -> None:
        started.append(self)

    monkeypatch.setattr(Callbacks, "_run", end_at_once)
    callbacks = Callbacks(lambda: None)
    for _ in range(4):
        callbacks.put("hook", lambda: None)
    assert set(started) == {callbacks}


def test_full_queue_drops_calls_without_blocking(
    hanging: list[Hanging],
    told: list[tuple[str, dict[str, object]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MOST_WAITING", 2)
    monkeypatch.setattr(module, "MOVING_SECONDS", 0.0)
    callbacks = Callbacks(lambda: None)
    callbacks.put("hook", hanging[0])
    assert hanging[0].began.wait(PATIENCE_SECONDS)
    for _ in range(5):
        callbacks.put("hook", lambda: None)
    callbacks.look()
    assert told == [("callbacks_left_out", {"count": 3})]
    hanging[0].may_end.set()
    callbacks.close(PATIENCE_SECONDS)


def test_call_apart_does_not_wait_for_the_others(hanging: list[Hanging]) -> None:
    callbacks = Callbacks(lambda: None, limit_seconds=0.0)
    callbacks.put("hook", hanging[0])
    assert hanging[0].began.wait(PATIENCE_SECONDS)
    made = Event()
    callbacks.put("cache", made.set, is_apart=True)
    assert made.wait(PATIENCE_SECONDS)
    callbacks.put("cache", hanging[1], is_apart=True)
    assert hanging[1].began.wait(PATIENCE_SECONDS)
    callbacks.look()  # abandons the stuck ones
    after = Event()
    callbacks.put("cache", after.set, is_apart=True)
    assert after.wait(PATIENCE_SECONDS)
    callbacks.close(PATIENCE_SECONDS)
