"""After failures, the outbox is read less and less often."""

from typing import Any

import pytest

from stoker.cluster import relays
from stoker.cluster.plan import Plan
from stoker.cluster.relays import GrowingPause, OutboxRelay
from stoker.exceptions import BrokerUnavailable
from stoker.jobs.relay import RelayRefused
from stoker.signals import event

from tests.unit.cluster.parts import Clock

pytestmark = pytest.mark.unit


def test_pause_doubles_with_each_failure_and_ends_with_a_success(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr(relays, "time", clock)
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


@pytest.mark.parametrize(
    ("error", "reads"), [(BrokerUnavailable("away"), 6), (RelayRefused("no such queue"), 60)]
)
def test_refusal_of_single_jobs_delays_only_the_log_lines(
    error: Exception, reads: int, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the broker is away, the reads of the outbox are delayed, too."""
    clock, read, told = Clock(), [], []

    def relay(*_: Any) -> int:
        read.append(clock.now)
        raise error

    def hear(facts: dict[str, Any], **_: Any) -> None:
        told.append(facts["error"])

    monkeypatch.setattr(relays, "time", clock)
    monkeypatch.setattr(relays, "relay_from", relay)
    event.connect(hear)
    try:
        outbox = OutboxRelay(plan.settings, "default", lambda: None)
        for _ in range(60):
            outbox.relay_if_due()
            clock.turn(0.5)
    finally:
        event.disconnect(hear)
    assert (len(read), told) == (reads, [error] * 6)
