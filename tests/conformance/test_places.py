"""Looking up and removing jobs: withdraw, states, sizes, purge, ping, info."""

from __future__ import annotations

import pytest

from stoker.brokers.contract import BrokerJob, Return
from stoker.brokers.dispatch import Dispatch
from stoker.values.ids import new_job_id

from tests.conformance.stands import LEASE_SECONDS, Stand


def test_states_names_every_state(stand: Stand) -> None:
    stand.needs("look_up")
    (running,) = stand.put()
    delivery = stand.claim_one()
    (ready,) = stand.put()
    (deferred,) = stand.put(run_after=stand.now() + 100)
    unknown = new_job_id()
    assert stand.broker.states([unknown, ready, deferred, running]) == {
        ready: "ready",
        deferred: "deferred",
        running: "running",
    }
    stand.broker.settle([delivery.lease])
    assert stand.broker.states([running]) == {}


def test_packages_and_start_times_of_jobs_can_be_read(stand: Stand) -> None:
    stand.needs("look_up")
    if stand.leases_are_rows:
        pytest.skip("they are in the rows of the jobs")
    due = stand.now() + 100
    (running,) = stand.put(package=b"running")
    delivery = stand.claim_one()
    (ready,) = stand.put(package=b"ready")
    (deferred,) = stand.put(package=b"deferred", run_after=due)
    unknown = new_job_id()
    assert stand.broker.jobs([unknown, ready, deferred, running]) == {
        ready: BrokerJob(b"ready"),
        deferred: BrokerJob(b"deferred", pytest.approx(due, abs=0.001)),
        running: BrokerJob(b"running"),
    }
    stand.broker.settle(again=[Return(delivery.lease, delay_seconds=50, attempts=1)])
    found = stand.broker.jobs([running])[running]
    assert found.due == pytest.approx(stand.now() + 50, abs=30)
    stand.advance(101)
    leases = [one.lease for one in stand.claim()]
    assert stand.broker.jobs([deferred]) == {deferred: BrokerJob(b"deferred")}
    stand.broker.settle(leases)
    assert stand.broker.jobs([running, deferred]) == {}
    assert stand.broker.jobs([]) == {}


def test_waiting_jobs_can_be_withdrawn(stand: Stand) -> None:
    stand.needs("look_up")
    (ready,) = stand.put()
    (deferred,) = stand.put(run_after=stand.now() + 100)
    (stays,) = stand.put()
    assert stand.broker.withdraw([ready, deferred, new_job_id()]) == {ready, deferred}
    assert stand.broker.withdraw([ready, deferred]) == set()
    stand.advance(101)
    assert [delivery.job_id for delivery in stand.claim()] == [stays]


def test_leased_job_is_not_withdrawn(stand: Stand) -> None:
    stand.needs("look_up")
    stand.put()
    delivery = stand.claim_one()
    assert stand.broker.withdraw([delivery.job_id]) == set()
    assert stand.broker.extend([delivery.lease], lease_seconds=LEASE_SECONDS) == set()
    stand.broker.settle(again=[Return(delivery.lease)])
    assert stand.broker.withdraw([delivery.job_id]) == {delivery.job_id}


def test_sizes_counts_jobs_by_queue_and_state(stand: Stand) -> None:
    stand.needs("look_up")
    stand.put(3)
    stand.claim(1)
    stand.put(2, run_after=stand.now() + 100)
    stand.put(4, queue="mail")
    assert stand.broker.sizes() == {
        "default": {"ready": 2, "deferred": 2, "blocked": 0, "running": 1},
        "mail": {"ready": 4, "deferred": 0, "blocked": 0, "running": 0},
    }


def test_sizes_without_look_up_counts_waiting_jobs(stand: Stand) -> None:
    if stand.capabilities.look_up:
        pytest.skip(f"{type(stand.broker).__name__} can look up waiting jobs")
    stand.put(3)
    stand.claim(1)
    stand.put(2, run_after=stand.now() + 100)
    stand.put(4, queue="mail")
    sizes = stand.broker.sizes()
    assert sizes["default"]["running"] == 1
    assert 2 <= sizes["default"]["ready"] + sizes["default"]["deferred"] <= 4
    assert sizes["mail"] == {"ready": 4, "deferred": 0, "blocked": 0, "running": 0}


def test_job_that_the_server_has_not_delivered_can_be_withdrawn(stand: Stand) -> None:
    if stand.capabilities.look_up:
        pytest.skip(f"{type(stand.broker).__name__} can look up waiting jobs")
    (ready,), (stays,) = stand.put(), stand.put()
    (deferred,) = stand.put(run_after=stand.now() + 100)
    assert stand.broker.not_arrived([ready, stays, deferred]) == {ready, stays, deferred}
    assert stand.broker.withdraw([ready, deferred]) == {ready, deferred}
    assert stand.broker.withdraw([ready, deferred]) == set()
    stand.advance(101)
    (delivery,) = stand.claim()
    assert delivery.job_id == stays
    assert stand.broker.withdraw([stays]) == set()
    assert stand.broker.not_arrived([ready, stays, deferred]) == set()
    stand.broker.settle([delivery.lease])
    assert stand.broker.not_arrived([stays]) == set()
    assert stand.broker.withdraw([stays]) == set()


def test_purge_removes_the_waiting_jobs_of_one_queue(stand: Stand) -> None:
    ready = stand.put(3)
    running = stand.claim_one()
    deferred = stand.put(2, run_after=stand.now() + 100)
    left = [] if stand.purges_deferred else deferred
    others = stand.put(2, queue="mail")
    assert stand.broker.purge("default") == 4 - len(left)
    assert stand.broker.purge("default") == 0
    stand.advance(101)
    assert sorted(one.job_id for one in stand.claim()) == left
    gone = set(ready + deferred) - {running.job_id, *left}
    assert not gone & set(stand.broker.states(list(gone)))
    assert stand.broker.settle([running.lease]) == set()
    assert [delivery.job_id for delivery in stand.claim(10, "mail")] == others


def test_waiting_jobs_of_a_queue_are_listed(stand: Stand) -> None:
    stand.needs("look_up")
    place = stand.broker.store if isinstance(stand.broker, Dispatch) else stand.broker
    assert place is not None
    running = stand.put()
    assert [one.job_id for one in stand.claim()] == running
    waiting = stand.put(stand.many(1_200)) + stand.put(2, run_after=stand.now() + 100)
    stand.put(2, queue="mail")
    batches = list(place.waiting_in("default"))
    assert sorted({job_id for some in batches for job_id in some}) == sorted(waiting)
    withdrawn = [stand.broker.withdraw(some) for some in place.waiting_in("default")]
    assert sum(map(len, withdrawn)) == len(waiting)
    assert list(place.waiting_in("default")) == []


def test_purge_removes_many_jobs(stand: Stand) -> None:
    put = stand.put(stand.many(1_200))
    assert stand.broker.purge("default") == len(put)


def test_ping_returns_and_info_names_broker_and_server(stand: Stand) -> None:
    stand.broker.ping()
    info = stand.broker.info()
    assert info["broker"].startswith(
        (stand.url, "redis://") if stand.url else ("memory://", "redis://")
    )
    assert info["server"]


def test_broker_is_usable_after_close(stand: Stand) -> None:
    (job_id,) = stand.put()
    stand.broker.close()
    stand.broker.close()
    assert stand.where(job_id) == "ready"
    assert stand.claim_one().job_id == job_id
