"""Recording of outcomes while the broker outside the database does not answer."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest

from stoker import Lock
from stoker.brokers.contract import Extension, Lease, Leases, Unrecorded
from stoker.brokers.dispatch import Dispatch
from stoker.conf import settings_for
from stoker.exceptions import BrokerUnavailable
from stoker.jobs.execute import Executor
from stoker.jobs.outcomes import Attempted, Batch
from stoker.jobs.record import LeftOut, Recorder
from stoker.models import Attempt, Claimed, Job
from stoker.models.job import JobColumns

from tests.app.tasks import add, fail
from tests.integration.fronted import fronted_broker, outside
from tests.integration.work import claim

pytestmark = [pytest.mark.redis, pytest.mark.django_db(transaction=True)]

HOUR_NS = 3600 * 10**9


@contextmanager
def outage(broker: Dispatch) -> Iterator[None]:
    def fail(*_: object, **__: object) -> None:
        raise BrokerUnavailable("Redis does not answer")

    with pytest.MonkeyPatch.context() as patch:
        for name in ("extend", "finish", "ping"):
            patch.setattr(broker.broker, name, fail)
        yield


def run_all(*jobs: Any) -> list[Attempted]:
    """Run these jobs, and return their attempts in the same order."""
    executor = Executor(settings_for(), worker_id="worker")
    ran: dict[str, Attempted] = {}
    while len(ran) < len(jobs):
        ran |= {str(one.job_id): executor.run(one) for one in claim()}
    return [ran[job.id] for job in jobs]


def recorder(broker: Dispatch) -> Recorder:
    """Return a recorder like the monitor's, which settles with the broker later."""
    return Recorder(settings_for(), broker, settle=lambda *_: None, clock_ns=lambda: 1)


def record(
    broker: Dispatch, ran: list[Attempted], doubtful: int, *, is_away: bool = False
) -> tuple[set[Lease], set[Lease]]:
    """Record these attempts, of which the lease at one place ends soon. Return the stale leases,
    and those that were left out."""
    batch = Batch.of(ran)
    batch.valid_until_ns = [0 if at == doubtful else HOUR_NS for at in range(len(ran))]
    with outage(broker) if is_away else nullcontext():
        try:
            return recorder(broker).record(batch), set()
        except LeftOut as error:
            return error.stale, set(error.leases)


def ended() -> set[str]:
    return {str(one.pk) for one in Job.objects.exclude(status=None)}


def test_only_outcomes_whose_lease_must_be_confirmed_are_left_out() -> None:
    with fronted_broker() as broker:
        jobs = [
            add.using(lock=Lock("one")).enqueue(1, 2),
            add.enqueue(1, 2),
            add.enqueue(1, 2),
            fail.enqueue(),
        ]
        ran = run_all(*jobs)
        stale, left = record(broker, ran, doubtful=1, is_away=True)
        assert (stale, left) == (set(), {ran[1].delivery.lease})
        assert ended() == {jobs[0].id, jobs[2].id}
        assert (Attempt.objects.count(), Claimed.objects.count()) == (1, 0)
        assert record(broker, ran[1:2], doubtful=0) == (set(), set())
        assert ended() == {jobs[0].id, jobs[1].id, jobs[2].id}


@pytest.mark.parametrize("options", [{"RESULTS": "redis"}, {"KEEP_RESULTS": False}])
def test_only_successes_that_the_broker_records_are_left_out(options: dict[str, Any]) -> None:
    with fronted_broker(**options) as broker:
        jobs = [add.using(lock=Lock("one")).enqueue(1, 2), add.enqueue(1, 2), fail.enqueue()]
        ran = run_all(*jobs)
        stale, left = record(broker, ran, doubtful=-1, is_away=True)
        assert (stale, left) == (set(), {ran[1].delivery.lease})
        assert (Attempt.objects.count(), Claimed.objects.count()) == (1, 0)
        assert broker.states([ran[1].delivery.job_id]) == {ran[1].delivery.job_id: "running"}
        assert record(broker, ran[1:2], doubtful=-1) == (set(), set())
        assert broker.states([ran[1].delivery.job_id]) == {}
        assert outside(broker) == 0


@pytest.mark.parametrize("is_recorded_there", [True, False])
def test_only_outcomes_on_the_server_that_is_down_are_left_out(
    monkeypatch: pytest.MonkeyPatch, *, is_recorded_there: bool
) -> None:
    with fronted_broker(**({"RESULTS": "redis"} if is_recorded_there else {})) as broker:
        assert broker.broker is not None
        jobs = [add.enqueue(1, 2), add.enqueue(1, 2)]
        ran = run_all(*jobs)
        down, finish = ran[0].delivery.lease, broker.broker.finish

        def finish_others(batch: JobColumns, leases: Leases) -> Unrecorded:
            here = [place for place, lease in enumerate(leases) if lease != down]
            finished = finish(batch.take(here), leases.take(here))
            return finished._replace(unanswered=[down], error=BrokerUnavailable("It is down."))

        monkeypatch.setattr(broker.broker, "finish", finish_others)
        monkeypatch.setattr(
            broker.broker, "extend_unlocked", lambda *_, **__: Extension(set(), {down})
        )
        assert record(broker, ran, doubtful=0) == (set(), {down})
        jobs[1].refresh()
        assert jobs[1].return_value == 3
        jobs[0].refresh()
        assert not jobs[0].is_finished
