"""The pages of guards: keys, their holders, waiting jobs, and the actions on them."""

import re
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid5

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from stoker import Limit, Rate, set_limit, task
from stoker.inspect import guards
from stoker.models import Blocked, GuardKey, Job, Need
from stoker.testing import drain
from stoker.values.ids import id_of, new_job_id

from tests.app import frail, payments
from tests.dashboard.conftest import PREFIX
from tests.dashboard.test_doing import done
from tests.dashboard.test_pages import MOST_QUERIES
from tests.guards.test_crowded import claim

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgres]

MOST_BYTES = 60_000


@task(limit=Limit(2, "tenant:{tenant}"))
def send(tenant: str) -> None:
    """Do nothing."""


@task(rate=Rate("2/h", "api"))
def ask() -> None:
    """Do nothing."""


def text_of(client: Client, path: str) -> str:
    response = client.get(PREFIX + path)
    assert response.status_code == 200, response.content
    return response.content.decode()


def key_named(name: str) -> GuardKey:
    return GuardKey.objects.get(name=name)


def test_list_shows_holders_waiting_jobs_and_rates(anna: Client) -> None:
    jobs = send.enqueue_many([(("<b>7</b>",), {})] * 5)
    ask.enqueue_many([((), {})] * 3)
    claim("default")
    text = text_of(anna, "guards/")
    assert "limit tenant:&lt;b&gt;7&lt;/b&gt;" in text
    assert "<b>7</b>" not in text
    assert "2 of 2" in re.sub(r"\s+", " ", text)
    assert f"jobs/{jobs[0].id}/" in text
    assert "next in" in text
    waiting = [row["waiting"] for row in anna.get(f"{PREFIX}guards/").context["rows"]]
    assert waiting == ["3", "1"]
    assert not anna.get(f"{PREFIX}guards/?q=nothing").context["rows"]


def test_limit_is_changed_and_changed_back(anna: Client) -> None:
    send.enqueue_many([(("7",), {})] * 5)
    claim("default")
    one = key_named("limit tenant:7")
    page = f"guards/{one.pk}/"
    assert "Change the limit" in text_of(anna, page)
    said = done(anna, "limit-guard", guard=str(one.pk), places="4", because="rush hour")
    assert said == "The limit tenant:7 lets 4 jobs run at a time."
    assert key_named(one.name).places_set == 4
    assert len(claim("default")) == 2
    assert "set by hand" in text_of(anna, "guards/")
    done(anna, "limit-guard", guard=str(one.pk), places="0")
    response = anna.post(f"{PREFIX}guards/limit/", {"guard": one.pk, "places": ""}, follow=True)
    notice = response.context["notice"]
    assert notice["text"] == "The limit tenant:7 is again the one that its tasks define."
    assert key_named(one.name).places_set is None
    done(anna, notice["undo"], **dict(notice["fields"]))
    assert key_named(one.name).places_set == 0


def test_limit_that_no_job_has_used_is_marked(anna: Client) -> None:
    set_limit("tenant:7", 3)
    one = key_named("limit tenant:7")
    assert "set by hand; no job has used it yet" in text_of(anna, "guards/")
    assert "No job has used it yet: check the spelling" in text_of(anna, f"guards/{one.pk}/")
    said = done(anna, "limit-guard", guard=str(one.pk), places="1")
    assert said == "The limit tenant:7 lets 1 job run at a time."
    send.enqueue("7")
    claim("default")
    assert "no job has used it yet" not in text_of(anna, "guards/")


@pytest.mark.parametrize("places", ["-1", "odd", "1e3", "9" * 400, "9" * 5000, "2.5"])
def test_impossible_limit_is_refused(places: str, anna: Client) -> None:
    set_limit("tenant:7", 3)
    one = key_named("limit tenant:7")
    response = anna.post(f"{PREFIX}guards/limit/", {"guard": one.pk, "places": places}, follow=True)
    assert response.context["notice"]["is_bad"]
    assert key_named(one.name).places_set == 3


def test_limit_of_an_unknown_key_or_another_kind_is_not_changed(anna: Client) -> None:
    payments.charge_till.enqueue(7)
    claim("default")
    lock = key_named("lock till:7")
    assert "Change the limit" not in text_of(anna, f"guards/{lock.pk}/")
    assert "no limit" in done(anna, "limit-guard", guard=str(lock.pk), places="4")
    assert key_named(lock.name).places_set is None
    for wrong in (str(UUID(int=1)), "odd"):
        assert anna.post(f"{PREFIX}guards/limit/", {"guard": wrong}).status_code == 404
    assert anna.get(f"{PREFIX}guards/{UUID(int=1)}/").status_code == 404


def test_halted_sequence_is_resumed_from_its_page(anna: Client) -> None:
    frail.broken.add("bad")
    for entry in ("bad", "next"):
        frail.book.enqueue("alice", entry)
    drain()
    frail.broken.clear()
    one = key_named("sequence account:alice")
    assert "halted" in text_of(anna, "guards/?state=halted")
    page = anna.get(f"{PREFIX}guards/{one.pk}/")
    letter_id = str(page.context["one"].letter_id)
    assert f"dead-letters/{letter_id}/" in page.content.decode()
    done(anna, "requeue-letter", letter=letter_id)
    assert "Why it is halted" not in text_of(anna, f"guards/{one.pk}/")
    drain()
    assert not Job.objects.filter(status=None).exists()


def test_dead_letter_of_a_halted_sequence_needs_its_permission(
    who_may: Callable[..., Client],
) -> None:
    frail.broken.add("bad")
    frail.book.enqueue("alice", "bad")
    drain()
    frail.broken.clear()
    one = key_named("sequence account:alice")
    for path in ("guards/", f"guards/{one.pk}/"):
        text = text_of(who_may("view_job"), path)
        assert "halted" in text
        assert "dead-letters/" not in text


def test_unique_keys_are_listed_with_their_jobs(anna: Client) -> None:
    job = frail.fetch.enqueue("<b>one</b>")
    text = text_of(anna, "guards/?state=unique")
    assert "unique feed:&lt;b&gt;one&lt;/b&gt;" in text
    assert f"jobs/{job.id}/" in text


def test_pages_with_many_keys_and_blocked_jobs_are_bounded(who_may: Callable[..., Client]) -> None:
    """The page of a key that blocks many jobs counts and shows a bounded number of them."""
    fill(keys=200, jobs=4_000)
    looker = who_may("view_job", "view_deadletter")
    crowded = key_named("lock 0")
    for path in (
        "guards/", "guards/?state=waiting", "guards/?q=lock", f"guards/{crowded.pk}/",
        "guards/?state=halted", "guards/?state=unique",
    ):  # fmt: skip
        with CaptureQueriesContext(connection) as captured:
            response = looker.get(PREFIX + path)
        assert response.status_code == 200
        assert len(captured) <= MOST_QUERIES, (path, [one["sql"][:150] for one in captured])
        assert len(response.content) < MOST_BYTES, (path, len(response.content))
    rows: list[Any] = looker.get(f"{PREFIX}guards/?q=lock+0").context["rows"]
    assert rows[0]["waiting"] == f"{guards.COUNTED:,}+"


def fill(keys: int, jobs: int) -> None:
    """Create keys that are held, and blocked jobs: half of them wait for the first key."""
    ids = [uuid5(UUID(int=0), str(number)) for number in range(keys)]
    ids = [UUID(int=one.int & ~(0xF << 76) | 8 << 76) for one in ids]
    GuardKey.objects.bulk_create(
        GuardKey(id=one, kind="lock", name=f"lock {number}", has_line=True)
        for number, one in enumerate(ids)
    )
    now = timezone.now()
    made, held, blocked = [], [], []
    for number in range(jobs + keys):
        job_id = new_job_id()
        made.append(Job(id=job_id, task="t", queue="mail", priority=0, enqueued_at=now))
        if number < keys:
            need = {"job_id": job_id, "key_id": ids[number], "holds": ids[number], "kind": "lock"}
            held.append(Need(id=id_of(job_id.int), name=f"lock {number}", **need))
        else:
            key = ids[0] if number % 2 else ids[number % keys]
            blocked.append(Blocked(job_id=job_id, key_id=key, queue="mail"))
    Job.objects.bulk_create(made)
    Need.objects.bulk_create(held)
    Blocked.objects.bulk_create(blocked)
