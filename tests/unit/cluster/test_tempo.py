"""When the pusher claims again."""

import pytest

from stoker.cluster.pusher.claims import OVERDUE_PAUSE_SECONDS, SHORTEST_PAUSE_SECONDS, Tempo

from tests.unit.cluster.parts import Clock

pytestmark = pytest.mark.unit


@pytest.fixture
def tempo(clock: Clock) -> Tempo:
    return Tempo(poll_seconds=1.0)


def test_first_claim_is_due_at_once(tempo: Tempo) -> None:
    assert tempo.is_due(is_hungry=False)


def test_empty_claims_double_the_pause_up_to_the_poll(tempo: Tempo, clock: Clock) -> None:
    pauses = []
    for _ in range(12):
        tempo.note(got=0, asked=10)
        pauses.append(round(tempo.next_claim - clock.now, 6))
        clock.turn(pauses[-1])
        assert tempo.is_due(is_hungry=False)
    assert pauses[:3] == [0.004, 0.008, 0.016]
    assert pauses[-1] == 1.0


def test_pause_after_an_empty_claim_is_kept_though_workers_are_idle(
    tempo: Tempo, clock: Clock
) -> None:
    tempo.note(got=0, asked=10)
    clock.turn(0.003)
    assert not tempo.is_due(is_hungry=True)


def test_wake_up_ends_the_pause_and_shortens_the_next(tempo: Tempo, clock: Clock) -> None:
    for _ in range(12):
        tempo.note(got=0, asked=10)
    tempo.hurry()
    assert tempo.is_due(is_hungry=False)
    tempo.note(got=0, asked=10)
    assert tempo.next_claim - clock.now == pytest.approx(2 * SHORTEST_PAUSE_SECONDS)


def test_reliable_wake_up_causes_one_claim(tempo: Tempo, clock: Clock) -> None:
    for _ in range(12):
        tempo.note(got=0, asked=10)
    tempo.hurry(closely=False)
    assert tempo.is_due(is_hungry=False)
    tempo.note(got=0, asked=10)
    assert tempo.next_claim - clock.now == pytest.approx(1.0)


def test_full_claim_is_repeated_only_when_workers_are_idle(tempo: Tempo, clock: Clock) -> None:
    tempo.note(got=10, asked=10)
    clock.turn(100)
    assert not tempo.is_due(is_hungry=False)
    assert tempo.is_due(is_hungry=True)
    assert tempo.next_claim == float("inf")


def test_partly_filled_claim_is_repeated_soon(tempo: Tempo, clock: Clock) -> None:
    for _ in range(12):
        tempo.note(got=0, asked=10)
    tempo.note(got=5, asked=10)
    assert tempo.next_claim - clock.now == pytest.approx(SHORTEST_PAUSE_SECONDS)


def test_deferred_job_shortens_the_pause_and_never_lengthens_it(tempo: Tempo, clock: Clock) -> None:
    for _ in range(12):
        tempo.note(got=0, asked=10)
    assert tempo.is_going_to_sleep
    tempo.wake_in(None)
    assert tempo.next_claim == clock.now + 1.0
    tempo.wake_in(0.3)
    assert tempo.next_claim == pytest.approx(clock.now + 0.3)
    tempo.wake_in(0.7)
    assert tempo.next_claim == pytest.approx(clock.now + 0.3)


def test_overdue_job_does_not_make_the_pusher_spin(tempo: Tempo, clock: Clock) -> None:
    for _ in range(12):
        tempo.note(got=0, asked=10)
    tempo.wake_in(0.0)
    assert tempo.next_claim - clock.now == pytest.approx(OVERDUE_PAUSE_SECONDS)
