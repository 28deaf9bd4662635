"""After failures, the outbox is read less and less often."""

import pytest

from stoker.cluster.scheduler import scheduler
from stoker.cluster.scheduler.scheduler import GrowingPause

from tests.unit.cluster.parts import Clock

pytestmark = pytest.mark.unit


def test_pause_doubles_with_each_failure_and_ends_with_a_success(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr(scheduler, "time", clock)
    pause = GrowingPause()
    assert pause.is_over
    for seconds in (1, 2, 4, 8, 10, 10):
        pause.note(has_failed=True)
        clock.turn(seconds - 0.1)
        assert not pause.is_over
        clock.turn(0.2)
        assert pause.is_over
    pause.note(has_failed=True)
    pause.note(has_failed=False)
    assert pause.is_over
    pause.note(has_failed=True)
    assert pause.seconds == 1
