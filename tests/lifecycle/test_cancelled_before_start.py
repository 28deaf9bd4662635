"""A leased job whose cancellation is requested before it starts never runs."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.db import OperationalError, transaction

from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import ClaimRequest, Return
from stoker.cluster.board import Board
from stoker.cluster.plan import Plan
from stoker.cluster.pusher import claims as claims_module
from stoker.cluster.pusher.claims import Claims
from stoker.cluster.pusher.flights import Flight, Flights
from stoker.cluster.pusher.requests import Requests
from stoker.cluster.pusher.roster import Recall, Roster
from stoker.cluster.wire import open_batch, pack_for_monitor
from stoker.conf import settings_for
from stoker.exceptions import BrokerUnavailable, RowsLocked
from stoker.jobs.record import Recorder
from stoker.models import Attempt, Cancellation, Claimed, Job, Ready
from stoker.models.cancellation import CancellationQuerySet
from stoker.store.engines.sessions import Patience

from tests.app import tasks

pytestmark = pytest.mark.django_db(transaction=True)

REASON = "the customer called"


class Pusher:
    """The parts of a pusher that claim and release jobs, with a monitor that records at once."""

    def __init__(self, board: Board) -> None:
        settings = settings_for()
        plan = Plan(overrides=(("workers", 1), ("concurrency", 1)))
        self.broker = broker_for(settings)
        self.flights = Flights(last_number=0)
        roster = Roster(plan, self.flights, board)
        recall = Recall(roster, self.flights, board)
        requests = Requests(plan, self.flights, recall, lambda *_: None, self.record)
        self.patience = Patience(settings, self.broker)
        self.claims = Claims(plan, self.broker, self.patience, self.flights, board, requests)
        self._recorder = Recorder(settings, self.broker)
        self._roster = roster

    def claim(self, count: int) -> None:
        self.claims.claim(count, is_hungry=True, prompt_room=lambda: count)

    def release(self) -> None:
        """Release the jobs that no worker has started, as at a stop."""
        self.flights.release_waiting()
        self.claims.release()

    def record(self, flights: Sequence[Flight]) -> None:
        reported: Any = [
            (one.report, pack_for_monitor(one.number, one.delivery)) for one in flights
        ]
        assert not self._recorder.record(open_batch(reported))
        self._roster.recorded(one.number for one in flights)


@pytest.fixture
def pusher(tmp_path: Path) -> Iterator[Pusher]:
    board = Board.create(tmp_path / "cluster.board", 1, 1)
    yield Pusher(board)
    board.close()


def test_released_job_whose_cancellation_was_requested_is_cancelled(pusher: Pusher) -> None:
    results = tasks.nothing.enqueue_many([((), {})] * 3)
    pusher.claim(3)
    assert results[1].cancel(REASON) is True
    assert Cancellation.objects.count() == 1, "it is leased"
    pusher.release()
    assert not Claimed.objects.exists()
    waiting = {UUID(results[0].id), UUID(results[2].id)}
    assert set(Ready.objects.values_list("pk", "attempts")) == {(one, 0) for one in waiting}
    job = Job.objects.get(pk=results[1].id)
    assert (job.status, job.reason) == ("CANCELLED", REASON)
    attempt = Attempt.objects.get()
    assert (attempt.kind, attempt.started_at, attempt.message) == ("cancelled", None, REASON)
    assert not len(pusher.flights)


def test_job_is_not_released_while_requests_cannot_be_read(
    pusher: Pusher, monkeypatch: pytest.MonkeyPatch
) -> None:
    (result,) = tasks.nothing.enqueue_many([((), {})])
    pusher.claim(1)
    result.cancel(REASON)

    def away(_rows: CancellationQuerySet, _job_ids: object) -> Any:
        raise BrokerUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(CancellationQuerySet, "reasons_of", away)
        pusher.release()
    assert Claimed.objects.count() == len(pusher.flights) == 1
    pusher.patience.try_at = 0.0
    pusher.release()
    assert Job.objects.get(pk=result.id).status == "CANCELLED"


@pytest.mark.parametrize("is_in_transaction", [False, True])
def test_job_released_before_its_request_is_seen_is_cancelled(
    is_in_transaction: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cluster had read the requests before this one was stored."""
    result = tasks.nothing.enqueue()
    broker = broker_for(settings_for())
    (delivery,) = broker.claim(ClaimRequest(1, holder=UUID(int=7), lease_seconds=60))
    really = CancellationQuerySet.ask

    def ask(rows: CancellationQuerySet, job_id: UUID, reason: str) -> None:
        assert not broker.settle(again=[Return(delivery.lease)])
        really(rows, job_id, reason)

    monkeypatch.setattr(CancellationQuerySet, "ask", ask)
    with transaction.atomic() if is_in_transaction else nullcontext():
        assert result.cancel(REASON) is True
    job = Job.objects.get(pk=result.id)
    assert (job.status, job.reason) == ("CANCELLED", REASON)
    assert not Ready.objects.exists()


def test_pusher_survives_an_outage_while_it_looks_for_locked_rows(
    pusher: Pusher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(error: Exception) -> Callable[..., None]:
        def fail(*_: object, **__: object) -> None:
            raise error

        return fail

    tasks.nothing.enqueue()
    pusher.claim(1)
    with monkeypatch.context() as patch:
        patch.setattr(pusher.broker, "settle", refuse(is_locked := RowsLocked("locked")))
        patch.setattr(
            Patience, "has_met_a_lock", property(lambda self: self.last_error is is_locked)
        )
        patch.setattr(claims_module, "locked_jobs", refuse(OperationalError("away")))
        pusher.release()
    pusher.patience.try_at = 0.0
    pusher.claims.release()
    assert Ready.objects.count() == 1
