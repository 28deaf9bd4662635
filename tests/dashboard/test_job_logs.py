"""The log of a job, and its tracebacks, on its page."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from stoker import Lock, chain
from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import ClaimRequest
from stoker.conf import settings_for
from stoker.dashboard.pages import job as job_page
from stoker.dashboard.pages import live
from stoker.logs.lines import StoredLine, pack_lines
from stoker.models import Blocked, LogChunk
from stoker.testing import drain

from tests.app import frail, tasks
from tests.dashboard.conftest import PREFIX, running_job
from tests.dashboard.test_pages import MOST_QUERIES, VIEWS

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgres]


@pytest.fixture
def _logs(settings: Any) -> None:
    tasks = settings.TASKS["default"]
    options = {**tasks["OPTIONS"], "LOGS": {"level": "INFO"}}
    settings.TASKS = {**settings.TASKS, "default": {**tasks, "OPTIONS": options}}


def store(job_id: str, *texts: str, attempt: int = 1) -> None:
    lines = [StoredLine(1500, "ERROR", "shop.orders", text) for text in texts]
    LogChunk.objects.create(
        job_id=job_id, attempt=attempt, lines=pack_lines(lines), keep_until=datetime.now(UTC)
    )


def lines_on(page: str) -> list[str]:
    return re.findall(r'<span class="text">(.*?)</span>', page, re.DOTALL)


@pytest.mark.usefixtures("_logs")
def test_page_of_running_job_shows_lines_and_makes_few_queries(
    who_may: Callable[..., Client],
) -> None:
    looker, job_id = who_may(*VIEWS, "view_logchunk"), running_job()
    store(job_id, "one", "<b>two</b>\x1b")
    store(job_id, "three", attempt=2)
    with CaptureQueriesContext(connection) as captured:
        page = looker.get(f"{PREFIX}jobs/{job_id}/").content.decode()
    assert len(captured) <= MOST_QUERIES, [one["sql"][:150] for one in captured]
    assert lines_on(page) == ["one", "&lt;b&gt;two&lt;/b&gt;\\x1b", "three"]
    assert re.findall(r"Attempt \d(?=</li>)", page) == ["Attempt 1", "Attempt 2"]
    assert "one:8" in page, "where it runs"


@pytest.mark.usefixtures("_logs")
def test_page_of_blocked_step_makes_few_queries(who_may: Callable[..., Client]) -> None:
    guarded = tasks.add.using(lock=Lock("feed:7"))
    for _ in range(2):
        chain(guarded.si(1, 2), guarded.si(3, 4)).enqueue()
    broker_for(settings_for()).claim(ClaimRequest(2, holder=uuid4(), lease_seconds=600))
    job_id = str(Blocked.objects.get().pk)
    store(job_id, "one", attempt=0)
    looker = who_may(*VIEWS, "view_logchunk")
    with CaptureQueriesContext(connection) as captured:
        page = looker.get(f"{PREFIX}jobs/{job_id}/").content.decode()
    # two more: whether its queue is paused, and whether a cluster serves it
    assert len(captured) <= MOST_QUERIES + 2, [one["sql"][:150] for one in captured]
    assert "feed:7" in page
    assert "The workflow" in page
    assert "is held by tests.app.tasks.add" in page


@pytest.mark.usefixtures("_logs")
def test_new_log_line_changes_the_digest_that_open_pages_watch(
    anna: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "PULSE_SECONDS", 0)
    live._seen.cache_clear()  # forgets the word that a test before this one asked for
    before = anna.get(f"{PREFIX}live/").json()["pulse"]
    assert anna.get(f"{PREFIX}live/").json()["pulse"] == before
    store(tasks.add.using(run_after=3600).enqueue(1, 2).id, "one")
    with_line = anna.get(f"{PREFIX}live/").json()["pulse"]
    LogChunk.objects.all().delete()
    assert len({before, with_line, anna.get(f"{PREFIX}live/").json()["pulse"]}) == 3


@pytest.mark.usefixtures("_logs")
def test_page_shows_the_newest_lines_and_all_on_demand(
    anna: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_page, "NEWEST_LINES", 3)
    job_id = tasks.add.enqueue(1, 2).id
    for number in range(3):
        store(job_id, f"{number}a", f"{number}b")
    page = anna.get(f"{PREFIX}jobs/{job_id}/").content.decode()
    assert lines_on(page) == ["1b", "2a", "2b"]
    assert "?log=all#log" in page
    page = anna.get(f"{PREFIX}jobs/{job_id}/?log=all").content.decode()
    assert lines_on(page) == ["0a", "0b", "1a", "1b", "2a", "2b"]
    assert "Earlier lines" not in page


def test_log_is_shown_only_with_the_setting_and_the_permission(
    anna: Client, who_may: Callable[..., Client], request: pytest.FixtureRequest
) -> None:
    job_id = tasks.add.enqueue(1, 2).id
    store(job_id, "one")
    with CaptureQueriesContext(connection) as captured:
        assert 'id="log"' not in anna.get(f"{PREFIX}jobs/{job_id}/").content.decode()
    assert not any("logchunk" in one["sql"] for one in captured), "it costs no query"
    request.getfixturevalue("_logs")
    assert 'id="log"' not in who_may("view_job").get(f"{PREFIX}jobs/{job_id}/").content.decode()
    assert 'id="log"' in anna.get(f"{PREFIX}jobs/{job_id}/").content.decode()


def test_traceback_folds_frames_of_stoker(anna: Client) -> None:
    frail.broken.add("order 1")
    failed = frail.charge.enqueue("order 1")
    drain()
    frail.broken.clear()
    page = anna.get(f"{PREFIX}jobs/{failed.id}/").content.decode()
    folded = re.findall(
        r"<summary>\d+ frames? of Stoker</summary><pre>(.*?)</pre>", page, re.DOTALL
    )
    assert folded
    assert all("stoker/jobs/" in one and "frail.py" not in one for one in folded)
    assert re.search(r"<pre>[^<]*frail\.py[^<]*order 1 is broken", page)
