"""Which schedules a cluster's scheduler finds, and in which order."""

from uuid import UUID, uuid4

import pytest
from django.utils import timezone

from stoker import every, schedules
from stoker.brokers.adapters import broker_for
from stoker.conf import settings_for
from stoker.models import Cluster, Schedule
from stoker.schedules import ticking
from stoker.schedules.ticking import Ticks, Trouble
from stoker.store.written import DatabaseNow, microseconds

from tests.app.tasks import nothing

pytestmark = pytest.mark.django_db

HOUR_SECONDS = 3600.0


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> Ticks:
    """Ticks of one of two clusters. The spans are long, because a test may take longer than the
    usual ones."""
    monkeypatch.setattr(ticking, "OVERDUE_US", microseconds(HOUR_SECONDS))
    monkeypatch.setattr(ticking, "IDLE_LOOK_SECONDS", HOUR_SECONDS)
    settings = settings_for()
    Cluster.objects.create(
        id=uuid4(), name=settings.cluster, host="elsewhere", pid=7, started_at=timezone.now(),
        heartbeat_us=DatabaseNow() + microseconds(HOUR_SECONDS), info={"alias": settings.alias},
    )  # fmt: skip
    found = Ticks(settings, broker_for(settings), uuid4(), lambda: None, lambda _: False)
    found._shares.divide()
    return found


def put(ticks: Ticks, due_in_seconds: float, *, is_ours: bool) -> UUID:
    """Create a schedule of this cluster's share, or of the other's."""
    while True:
        row = schedules.create(str(uuid4()), nothing, every(hours=1))
        if ticks._shares.has(row.pk) is is_ours:
            due_us = DatabaseNow() + microseconds(due_in_seconds)
            Schedule.objects.filter(pk=row.pk).update(due_us=due_us)
            return row.pk
        Schedule.objects.filter(pk=row.pk).delete()


def found(ticks: Ticks) -> list[UUID]:
    return [schedule_id for _, schedule_id, _ in ticks._look()[0]]


def test_schedules_of_the_other_cluster_are_left_to_it_until_they_are_overdue(
    ticks: Ticks,
) -> None:
    ours = put(ticks, -HOUR_SECONDS / 2, is_ours=True)
    put(ticks, -HOUR_SECONDS / 2, is_ours=False)
    put(ticks, HOUR_SECONDS / 2, is_ours=False)
    overdue = put(ticks, -HOUR_SECONDS * 2, is_ours=False)
    assert found(ticks) == [ours, overdue], "ours first, although it has waited less"


def test_schedules_due_soon_are_found_earliest_first(ticks: Ticks) -> None:
    later = put(ticks, HOUR_SECONDS / 2, is_ours=True)
    sooner = put(ticks, HOUR_SECONDS / 4, is_ours=True)
    now = put(ticks, -1, is_ours=True)
    put(ticks, HOUR_SECONDS * 2, is_ours=True)
    assert found(ticks) == [now, sooner, later]
    moments = [(due_us - now_us) / 1e6 for due_us, _, now_us in ticks._look()[0]]
    assert moments[0] < 0 < moments[1] < moments[2] < HOUR_SECONDS


class UnreadableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (ValueError("half \ud83d"), r"ValueError: half \ud83d"),
        (ValueError("a \0"), r"ValueError: a \x00"),
        (UnreadableError(), "UnreadableError: <the error's text could not be read: RuntimeError>"),
    ],
)
def test_error_whose_text_no_database_accepts_is_shown(
    ticks: Ticks, error: Exception, problem: str
) -> None:
    schedule_id = put(ticks, -1, is_ours=True)

    def fail() -> None:
        raise error

    ticks._within_bounds(schedule_id, fail)
    assert schedule_id in ticks._troubles
    assert Schedule.objects.get(pk=schedule_id).problem == problem


def test_pause_and_run_by_hand_accept_any_text() -> None:
    schedules.create("any", nothing, every(hours=1))
    schedules.run_now("any", by="half \ud83d")
    assert schedules.pause("any", by="a \0", because="half \ud83d").paused_by == r"a \x00"
    assert Schedule.objects.get().paused_because == r"half \ud83d"


def test_failed_schedule_is_not_retried_before_its_pause_ends(ticks: Ticks) -> None:
    resting, ready = (put(ticks, -1, is_ours=True) for _ in range(2))
    never = ticking.time.monotonic() + HOUR_SECONDS
    ticks._troubles[resting] = Trouble(since=0.0, try_at=never, rest_seconds=1.0)
    ticks._troubles[ready] = Trouble(since=0.0, try_at=0.0, rest_seconds=1.0)
    assert found(ticks) == [ready]
