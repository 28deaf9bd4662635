"""Guards: what decisions write, beyond which jobs start."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.db import transaction

from stoker.guards import admission
from stoker.guards.sequences import halt_again, pass_on
from stoker.guards.sweep import call_due
from stoker.models import Blocked, GuardKey, Need
from stoker.models.need import NewNeed, need_ids
from stoker.store.written import MICROSECONDS
from stoker.values.ids import new_job_id

from tests.conformance.stands import Stand


@pytest.fixture
def stand(guarding_stand: Stand) -> Stand:
    return guarding_stand


def need(name: str, kind: str = "lock", places: int = 1, **options: Any) -> NewNeed:
    """Return the need for a place under the key of that name."""
    key_id = uuid.uuid5(uuid.NAMESPACE_OID, f"{kind} {name}")
    return NewNeed(key_id, kind, f"{kind} {name}", places, **options)


def test_fencing_number_is_above_those_of_all_jobs_of_an_earlier_claim(stand: Stand) -> None:
    stand.put(4, needs=[need("smtp", "limit", 3)])
    earlier = stand.claim()
    assert len(earlier) == 3
    stand.broker.settle([earlier[0].lease])
    (later,) = stand.claim()
    assert later.fence > max(one.fence for one in earlier)


def test_job_refused_by_one_guard_makes_no_job_ready_under_a_full_key(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that another guard turns away leaves no place under this one."""
    stand.put(needs=[need("a"), need("b")])
    assert len(stand.claim()) == 1
    stand.put(needs=[need("b")])
    assert stand.claim() == []
    stand.put(needs=[need("a"), need("b")])
    calls: list[Any] = []
    monkeypatch.setattr(admission, "call_all", lambda _, turns: calls.extend(turns) or set())
    assert stand.claim() == []
    assert calls == []


def test_key_whose_first_blocked_job_was_withdrawn_is_checked_again(stand: Stand) -> None:
    """This happens while an open transaction withdraws the blocked job."""
    first, _ = stand.put(2, needs=[need("smtp")])
    assert len(stand.claim()) == 1
    assert stand.claim() == []
    Need.objects.filter(job_id=first).delete()
    (third,) = stand.put(needs=[need("smtp")])
    now_us = stand.now() * MICROSECONDS
    assert stand.claim() == []
    assert Blocked.objects.filter(job_id=third).exists()
    due_us = GuardKey.objects.get().due_us
    assert due_us is not None
    assert due_us > now_us


def test_rate_whose_blocked_jobs_became_ready_is_not_checked_again_at_once(stand: Stand) -> None:
    """Until then no sweep reads it: the called jobs may not have been claimed."""
    rate = need("rate", "rate", 2, period_us=600 * MICROSECONDS)
    stand.put(4, needs=[rate])
    assert len(stand.claim(rated_limit=100)) == 2
    assert stand.claim(rated_limit=100) == []
    GuardKey.objects.update(starts=[], due_us=1)
    now_us = stand.now() * MICROSECONDS
    assert call_due("default", 1) == 1
    due_us = GuardKey.objects.get().due_us
    assert due_us is not None
    assert due_us > now_us


def test_place_in_a_sequence_is_given_back_as_the_same_need(stand: Stand) -> None:
    """The ids of needs follow from the job's. This one is the second of its job."""
    first, second = stand.put(2, needs=[need("smtp"), need("account", "sequence", halts=True)])
    passed = Need.objects.get(pk=need_ids(second, 2)[1])
    Need.objects.filter(job_id=first).delete()
    with transaction.atomic():
        halt_again("default", [passed], {second: first})
    assert Need.objects.get(job_id=first).pk == need_ids(first, 2)[1]


def test_requeue_in_another_sequence_names_the_queue_that_goes_on(stand: Stand) -> None:
    sequence = need("account", "sequence", halts=True)
    failed, _ = stand.put(2, needs=[sequence], queue="mail")
    (running,) = stand.claim(1, "mail")
    assert stand.claim(1, "mail") == []
    stand.broker.settle([running.lease], failed={failed})
    assert stand.claim(1, "mail") == []
    with transaction.atomic():
        assert pass_on("default", {failed: new_job_id()}) == {"mail"}
