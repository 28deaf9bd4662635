"""The list of guards for which jobs wait: their holders and the number of waiting jobs."""

import time
import uuid

import pytest

from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import ClaimRequest, Delivery
from stoker.conf import settings_for
from stoker.inspect.guards import crowded
from stoker.inspect.stats import queues
from stoker.models import GuardKey
from stoker.models.job import Message
from stoker.models.need import NewNeed
from stoker.store.written import database_now_us
from stoker.values.ids import new_job_id

pytestmark = pytest.mark.django_db(transaction=True, available_apps=["stoker"])


def put(name: str, count: int = 1, **options: object) -> None:
    key_id = uuid.uuid5(uuid.NAMESPACE_OID, name)
    need = NewNeed(key_id, name.partition(" ")[0], name, **options)  # type: ignore[arg-type]
    broker_for(settings_for()).enqueue(
        [
            Message(new_job_id(), "shop.tasks.send", "mail", 0, b"", None, time.time(), (need,))
            for _ in range(count)
        ]
    )


def claim(queue: str = "mail") -> list[Delivery]:
    broker = broker_for(settings_for())
    return broker.claim(
        ClaimRequest(100, holder=uuid.uuid4(), lease_seconds=60, rated_limit=100, queues=[queue])
    )


def test_guard_without_waiting_jobs_is_not_listed() -> None:
    put("lock smtp")
    claim()
    assert crowded(settings_for()).keys == ()


def test_longest_line_is_listed_first_with_its_holders() -> None:
    put("lock smtp", 3)
    put("limit tenant:7", 9, places=2)
    running = claim()
    tenant, smtp = crowded(settings_for()).keys
    assert (tenant.name, tenant.places, tenant.waiting) == ("limit tenant:7", 2, 7)
    assert len(tenant.holders) == 2
    assert (smtp.kind, smtp.places, smtp.waiting, smtp.is_exact) == ("lock", 1, 2, True)
    (holder,) = smtp.holders
    assert holder.job_id in {str(delivery.job_id) for delivery in running}
    assert holder.task == "shop.tasks.send"
    assert {one.name: one.blocked for one in queues(settings_for())} == {"mail": 9}


def test_rate_shows_when_the_next_job_may_start() -> None:
    put("rate api", 5, places=2, period_us=3_600_000_000)
    claim()
    (rate,) = crowded(settings_for()).keys
    assert (rate.waiting, rate.places, rate.period_seconds) == (3, 2, 3600)
    assert rate.holders == ()
    assert 3500 < (rate.next_start_seconds or 0) < 3700


def test_lock_has_no_next_start() -> None:
    """Its key may have a time for the next look, if its first job was locked."""
    put("lock smtp", 3)
    claim()
    GuardKey.objects.update(due_us=database_now_us("default"))
    (smtp,) = crowded(settings_for()).keys
    assert (smtp.waiting, smtp.next_start_seconds) == (2, None)


def test_only_twenty_guards_are_listed_and_the_rest_counted() -> None:
    for number in range(23):
        put(f"lock {number}", 2)
    claim()
    seen = crowded(settings_for())
    assert (len(seen.keys), seen.more) == (20, 3)
