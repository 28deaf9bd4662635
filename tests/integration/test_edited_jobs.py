"""Waiting jobs with guards get other arguments, or start at another time."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest

from stoker import Limit, Lock, Rate, Unique, dead_letters
from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import ClaimRequest
from stoker.conf import settings_for
from stoker.jobs.change import HELD_UNTIL, Change, change
from stoker.models import Need

from tests.app import frail, tasks
from tests.integration.letters import dead

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("nothing_broken")]


def test_edit_of_a_job_whose_key_raises_is_refused() -> None:
    jobs = [frail.refund.enqueue(order) for order in ("order 1", "order 2")]
    frail.broken.add("owner of order 1")
    ids = [UUID(job.id) for job in jobs]
    first, second = change(settings_for(), ids, Change(args=["order 3"]))
    assert "owner of order 1 is broken" in first.refusal
    assert "another unique key" in second.refusal


def test_job_is_edited_after_a_deploy_that_changed_its_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, after = (
        tasks.echo.using(limit=Limit(n, "{value}"), rate=Rate(f"{n}/m", "{value}")) for n in (5, 7)
    )
    job = before.enqueue(1)
    monkeypatch.setattr("stoker.jobs.change.task_of", lambda _: after)
    (changed,) = change(settings_for(), [UUID(job.id)], Change(args=[2]))
    assert changed.refusal == ""
    needs = Need.objects.filter(job_id=job.id).order_by("pk").values_list("name", "places")
    assert list(needs) == [("limit 2", 7), ("rate 2 per 60 s", 7)]


def test_edit_of_a_job_whose_guards_are_not_those_of_the_task_says_so() -> None:
    job = tasks.echo.using(lock=Lock("{value}")).enqueue(1)
    (changed,) = change(settings_for(), [UUID(job.id)], Change(args=[2]))
    assert changed.refusal == (
        "Its guards come from using(), or the task had other guards when it was enqueued: cancel "
        "the job and enqueue another."
    )


def test_edit_of_a_job_whose_unique_key_is_not_that_of_the_task_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = tasks.add.using(unique=Unique("b:{second}")).enqueue(1, 2)
    declared = tasks.add.using(unique=Unique("a:{first}"))
    monkeypatch.setattr("stoker.jobs.change.task_of", lambda _: declared)
    (changed,) = change(settings_for(), [UUID(job.id)], Change(args=[1, 3]))
    assert "another unique key" in changed.refusal


def test_requeued_job_without_a_unique_key_is_edited() -> None:
    letter = dead(frail.charge, "order 1")
    job_id = dead_letters.requeue(letter.pk).job_id
    assert job_id is not None
    (changed,) = change(settings_for(), [job_id], Change(args=["order 2"]))
    assert changed.refusal == ""


def claim(*queues: str) -> list[str]:
    """Claim jobs, and return their ids."""
    request = ClaimRequest(9, holder=uuid4(), lease_seconds=600, queues=queues or ("default",))
    return [str(one.job_id) for one in broker_for(settings_for()).claim(request)]


@pytest.fixture
def jobs() -> list[str]:
    """The ids of three jobs with one lock. It is the turn of the second; the third is blocked."""
    locked = tasks.echo.using(lock=Lock("one"), unique=Unique("{value}", on_conflict="replace"))
    jobs = [locked.enqueue(number).id for number in range(3)]
    broker = broker_for(settings_for())
    request = ClaimRequest(9, holder=uuid4(), lease_seconds=600, queues=("default",))
    (running,) = broker.claim(request)
    assert broker.claim(request) == []
    broker.settle([running.lease])
    places = broker.states([UUID(job) for job in jobs[1:]])
    assert list(places.values()) == ["ready", "blocked"]
    return jobs


@pytest.mark.parametrize(
    "wanted", [Change(run_after=HELD_UNTIL), Change(queue="night"), Change(priority=-9)]
)
def test_job_that_is_changed_in_its_turn_passes_the_turn_on(
    wanted: Change, jobs: list[str]
) -> None:
    (changed,) = change(settings_for(), [UUID(jobs[1])], wanted)
    assert changed.refusal == ""
    assert claim() == [jobs[2]]


def test_start_time_that_some_database_cannot_store_is_refused(jobs: list[str]) -> None:
    with pytest.raises(ValueError, match="between the years 1900 and 9000"):
        change(settings_for(), [UUID(jobs[2])], Change(run_after=datetime.max.replace(tzinfo=UTC)))


@pytest.mark.parametrize(
    "options", [{"run_after": 3600}, {"queue_name": "night"}, {"lock": Lock("another")}]
)
def test_job_that_is_replaced_in_its_turn_passes_the_turn_on(
    options: dict[str, Any], jobs: list[str]
) -> None:
    replacing = tasks.echo.using(
        unique=Unique("{value}", on_conflict="replace"), **{"lock": Lock("one"), **options}
    )
    assert replacing.enqueue(1).was_duplicate
    assert jobs[2] in claim()


def test_replacing_a_job_that_keeps_its_turn_checks_no_key(
    jobs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("no key is checked")

    monkeypatch.setattr("stoker.jobs.enqueue.look_after", refuse)
    locked = tasks.echo.using(lock=Lock("one"), unique=Unique("{value}", on_conflict="replace"))
    assert locked.enqueue(1).was_duplicate
    assert claim() == [jobs[1]]
