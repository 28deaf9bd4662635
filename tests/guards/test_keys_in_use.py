"""The pages of keys that are in use: who holds them, and how many jobs wait."""

from uuid import UUID

import pytest

from stoker.conf import settings_for
from stoker.exceptions import GuardNotFound
from stoker.inspect import guards
from stoker.models import GuardKey, Job
from stoker.testing import drain

from tests.app import frail
from tests.guards.test_crowded import claim, put

pytestmark = pytest.mark.django_db(transaction=True)


def names(state: str = "", text: str = "") -> list[str]:
    """Return the names of the keys on all pages."""
    found: list[str] = []
    after = ""
    while True:
        page = guards.keys(settings_for(), 3, after, state=state, text=text)
        found += [one.name for one in page.keys]
        if page.next is None:
            return sorted(found)
        after = page.next


def test_key_shows_its_holders_and_the_number_of_waiting_jobs() -> None:
    put("limit tenant:7", 9, places=2)
    put("lock smtp")
    claimed = {one.job_id for one in claim()}
    page = guards.keys(settings_for(), 50)
    limit, lock = sorted(page.keys, key=lambda one: one.name)
    assert (limit.used, limit.most, limit.waiting.number) == (2, 2, 7)
    assert (lock.used, lock.most, lock.waiting.number) == (1, 1, 0)
    assert {*limit.holders, *lock.holders} == claimed == set(page.jobs)
    held, waiting = guards.jobs_at(settings_for(), limit, 5)
    assert [job.pk for job in held] == limit.holders
    assert [job.pk for job in waiting] == sorted(job.pk for job in waiting)
    assert len(waiting) == 5


def test_rate_shows_the_starts_that_count_and_when_the_next_may_start() -> None:
    put("rate api", 5, places=2, period_us=3_600_000_000)
    claim()
    (rate,) = guards.keys(settings_for(), 50).keys
    assert (rate.used, rate.places, rate.most, rate.waiting.number) == (2, 2, 2, 3)
    assert rate.period_seconds == 3600
    assert 3500 < (rate.next_start_seconds or 0) < 3700
    assert not rate.holders


def test_waiting_jobs_are_counted_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "COUNTED", 3)
    put("lock smtp", 6)
    put("lock ftp", 4)
    claim()
    counts = {one.name: one.waiting for one in guards.keys(settings_for(), 50).keys}
    assert (counts["lock smtp"].number, counts["lock smtp"].is_exact) == (3, False)
    assert (counts["lock ftp"].number, counts["lock ftp"].is_exact) == (3, True)


@pytest.mark.parametrize("scanned", [2, 10_000])
def test_pages_with_and_without_filters_cover_all_keys(
    scanned: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guards, "SCANNED", scanned)
    for number in range(7):
        put(f"lock {number}", 1 + number % 2)
    put("limit tenant:7")
    claim()
    assert len(names()) == 8
    assert names("limit") == ["limit tenant:7"]
    assert names("waiting") == ["lock 1", "lock 3", "lock 5"]
    assert names("lock", "5") == ["lock 5"]
    assert names(text="TENANT") == ["limit tenant:7"]
    assert names(text="%") == []


def test_whole_key_is_found_on_the_first_page_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "SCANNED", 1)
    monkeypatch.setattr(guards, "tasks_of_apps", lambda: [frail.fetch.module_path])
    for number in range(9):
        frail.book.enqueue(f"a:{number}", "entry")
        frail.fetch.enqueue(f"b:{number}")
    claim("default")
    page = guards.keys(settings_for(), 50, text="account:a:4")
    assert [one.name for one in page.keys] == ["sequence account:a:4"]
    assert page.is_cut
    found = guards.unique_keys(settings_for(), 50, text="feed:b:4")
    assert [one.name for one in found.keys] == ["unique feed:b:4"]
    assert names(text="account:a:4") == ["sequence account:a:4"]


def test_halted_sequence_names_the_failed_job_and_its_dead_letter() -> None:
    frail.broken.add("bad")
    failed = frail.book.enqueue("anna", "bad")
    frail.book.enqueue("anna", "next")
    frail.book.enqueue("bob", "good")
    drain()
    frail.broken.clear()
    assert names("halted") == ["sequence account:anna"]
    (one,) = guards.keys(settings_for(), 50, state="halted").keys
    assert str(one.halted_by) == failed.id
    assert one.letter_id is not None
    assert one.waiting.number == 1
    assert guards.key(settings_for(), one.id) == one
    (crowded,) = guards.crowded(settings_for()).keys
    assert crowded.halted_by == failed.id


def test_sequence_stays_halted_when_the_failed_job_was_pruned() -> None:
    frail.broken.add("bad")
    failed = frail.book.enqueue("anna", "bad")
    frail.book.enqueue("anna", "next")
    drain()
    frail.broken.clear()
    Job.objects.filter(pk=failed.id).delete()
    (one,) = guards.keys(settings_for(), 50, state="halted").keys
    assert str(one.halted_by) == failed.id
    assert one.letter_id is not None
    (crowded,) = guards.crowded(settings_for()).keys
    assert crowded.halted_by == failed.id


def test_unique_key_names_its_job_and_how_long_it_is_taken() -> None:
    job = frail.fetch.enqueue("one")
    hourly = frail.fetch_hourly.enqueue("two")
    page = guards.unique_keys(settings_for(), 50)
    feed, hour = sorted(page.keys, key=lambda one: one.name)
    assert (feed.name, str(feed.job_id), feed.until) == ("unique feed:one", job.id, None)
    assert str(hour.job_id) == hourly.id
    assert hour.until is not None
    assert 3599 < (hour.until - hour.taken_at).total_seconds() < 3601
    assert set(page.jobs) == {feed.job_id, hour.job_id}


@pytest.mark.parametrize("given", [{"state": "odd"}, {"after": "odd"}, {"after": "7"}])
def test_invalid_state_or_cursor_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"odd|7"):
        guards.keys(settings_for(), 50, **given)


def test_unknown_key_is_not_found() -> None:
    assert not GuardKey.objects.exists()
    for wrong in (UUID(int=1), "odd"):
        with pytest.raises(GuardNotFound):
            guards.key(settings_for(), wrong)
