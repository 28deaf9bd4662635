"""Queues, clusters and schedules in the admin; several backends; an unreachable store."""

import html
import json
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db.models import F
from django.utils import timezone

from stoker import Cron, every, queues, schedules
from stoker.models import Cluster, Job, PausedQueue, Schedule, Tally
from stoker.operations.wording import since
from stoker.store.written import DatabaseNow

from tests.admin.conftest import Visitor
from tests.app import tasks
from tests.integration.work import another_database, claim, work_off

# -- queues ---------------------------------------------------------------------------------------


def test_queue_list_shows_sizes_and_throughput(anna: Visitor) -> None:
    tasks.nothing.enqueue_many([((), {})] * 3)
    tasks.nothing.using(queue_name="mail", run_after=60).enqueue()
    now = int(timezone.now().timestamp())
    Tally.objects.create(start=now - 20, seconds=10, queue="mail", task="x", successful=50)
    page = anna.get("pausedqueue/")
    assert '<th scope="row"><a href="/admin/stoker/job/?queue=mail&amp;state=READY">mail' in page
    assert "<td>3</td>" in page
    assert "<td>10.0</td>" in page, "50 jobs in five minutes"


def test_queue_is_paused_resumed_and_cleared(anna: Visitor) -> None:
    tasks.nothing.using(queue_name="mail/eu 1").enqueue_many([((), {})] * 3)
    path = "pausedqueue/mail/eu 1"
    assert "Pause the queue mail/eu 1?" in anna.get(f"{path}/pause/")
    page = anna.post(f"{path}/pause/", because="the provider is down")
    assert "by anna: the provider is down" in page
    assert PausedQueue.objects.get().by == "anna"
    assert "is resumed" in anna.post(f"{path}/resume/")
    assert "was not paused" in anna.post(f"{path}/resume/")
    assert "Cancel the jobs" in anna.get(f"{path}/clear/")
    assert "3 jobs of the queue mail/eu 1 cancelled" in anna.post(f"{path}/clear/")
    assert Job.objects.filter(status="CANCELLED").count() == 3


# -- clusters -------------------------------------------------------------------------------------


@pytest.fixture
def cluster(transactional_db: None) -> Cluster:
    result = tasks.add.enqueue(1, 2)
    claim()
    running = [{"job": result.id, "seconds": 75.0}]
    worker = {"number": 3, "pid": 77, "jobs_done": 5, "running": running}
    return Cluster.objects.create(
        id=uuid.uuid4(),
        name="stoker",
        host="one.example",
        pid=7,
        heartbeat_us=DatabaseNow(),
        started_at=timezone.now(),
        info={"workers": [{**worker, "resident_bytes": 64 << 20}, {**worker, "running": []}]},
    )


def test_cluster_pages_show_workers_and_running_jobs(anna: Visitor, cluster: Cluster) -> None:
    page = anna.get("cluster/")
    for text in ("one.example", "tests.app.tasks.add", "1 min 15 s", "64 MiB", "nothing"):
        assert text in page, text
    assert "one.example" in anna.get(f"cluster/{cluster.pk}/change/")
    anna.get(f"cluster/{uuid.uuid4()}/change/", status=404)


def test_cluster_is_asked_to_be_quiet_to_resume_and_to_stop(
    anna: Visitor, cluster: Cluster
) -> None:
    def request() -> str:
        cluster.refresh_from_db()
        return cluster.request

    anna.post(f"cluster/{cluster.pk}/quiet/")
    assert request() == "quiet"
    assert "/resume/" in anna.get("cluster/")
    anna.post(f"cluster/{cluster.pk}/resume/")
    assert request() == ""
    assert "as SIGTERM does" in anna.get(f"cluster/{cluster.pk}/stop/")
    assert request() == ""
    anna.post(f"cluster/{cluster.pk}/stop/")
    assert request() == "stop"
    assert "is stopping already" in anna.post(f"cluster/{cluster.pk}/quiet/")


# -- schedules ------------------------------------------------------------------------------------

FORM = {
    "name": "nightly",
    "task": "tests.app.tasks.add",
    "kind": "cron",
    "expression": "30 4 * * *",
    "tz": "Europe/Berlin",
    "args": "[1, 2]",
    "misfire": "once",
    "overlap": "allow",
}


def test_schedule_is_added_and_changed(anna: Visitor) -> None:
    page = anna.post("schedule/add/", **FORM)
    assert "is added" in page
    assert "Europe/Berlin" in page
    row = Schedule.objects.get()
    assert (row.name, row.expression, row.zone, row.source) == (
        "nightly",
        "30 4 * * *",
        "Europe/Berlin",
        "row",
    )
    assert schedules.scheduled("nightly").args == (1, 2)
    assert 'value="30 4 * * *"' in anna.get("schedule/nightly/edit/")
    anna.post("schedule/nightly/edit/", **FORM | {"expression": "0 4 * * *", "overlap": "skip"})
    row.refresh_from_db()
    assert (row.expression, row.overlap) == ("0 4 * * *", "skip")
    assert "There is a schedule" in anna.post("schedule/add/", **FORM)


def test_edit_keeps_fields_that_are_not_in_the_form(anna: Visitor) -> None:
    rule = every(days=3, anchor=timezone.now(), jitter=30, grace=90, moment_as="when")
    schedules.create("third day", tasks.tell_moment, rule)
    before = Schedule.objects.values().get()
    page = anna.get("schedule/third day/edit/")
    assert 'value="3"' in page
    changed = {"task": before["task"], "kind": "interval", "count": "3", "unit": "days"}
    anna.post(
        "schedule/third day/edit/",
        **{**changed, "tz": before["zone"], "misfire": "once", "overlap": "skip"},
    )
    after = Schedule.objects.values().get()
    assert after["overlap"] == "skip"
    for name in ("jitter_us", "grace_us", "moment_as", "anchor", "moment_us"):
        assert after[name] == before[name], name


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"expression": "61 2 * * *"}, "61"),
        ({"expression": ""}, "Write a cron rule"),
        ({"kind": "interval"}, "Write the number of units"),
        ({"kind": "once"}, "Write a date"),
        ({"tz": "Europe/Atlantis"}, "Atlantis"),
        ({"task": "tests.app.tasks.nobody"}, "There is no task"),
        ({"args": "[1]"}, "missing a required argument"),
        ({"args": '["1", 2]'}, "is not of type int"),
        ({"repeats": "0"}, "repeats"),
        ({"start": "2031-01-01 00:00", "end": "2030-01-01 00:00"}, "before start"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_invalid_schedule_is_refused_by_preview_and_form(
    anna: Visitor, changes: dict[str, str], sentence: str
) -> None:
    fields = {**FORM, **changes}
    told = json.loads(anna.post("schedule/preview/", **fields))
    assert sentence in " ".join(told["problems"]), told
    assert sentence in anna.post("schedule/add/", **fields)
    assert not Schedule.objects.exists()


def test_preview_of_a_changed_schedule_does_not_ask_for_its_name(anna: Visitor) -> None:
    schedules.create("third day", tasks.tell_moment, every(days=3, moment_as="when"))
    page = anna.get("schedule/third day/edit/")
    address = html.unescape(page.partition('data-preview="')[2].partition('"')[0])
    fields = {"task": "tests.app.tasks.tell_moment", "kind": "interval", "count": "2"}
    fields |= {"unit": "days", "tz": "UTC"}
    told = json.loads(anna.post(address.removeprefix("/admin/stoker/"), **fields))
    assert told["problems"] == []
    assert "2 days" in told["words"]


def test_pages_have_one_breadcrumb_landmark(anna: Visitor) -> None:
    for path in ("job/", "schedule/", "deadletter/"):
        assert anna.get(path).count('aria-label="Breadcrumbs"') == 1, path


def test_preview_shows_rule_in_words_and_next_ticks(anna: Visitor) -> None:
    told = json.loads(anna.post("schedule/preview/", **FORM))
    assert told["problems"] == []
    assert "04:30" in told["words"]
    assert len(told["next"]) == 5
    assert "04:30:00 CE" in told["next"][0]
    once = {**FORM, "kind": "once", "at": "2100-01-31 06:00"}
    assert "06:00:00 CET" in json.loads(anna.post("schedule/preview/", **once))["next"][0]
    assert not Schedule.objects.exists()


def test_schedule_is_run_paused_resumed_and_deleted(anna: Visitor) -> None:
    schedules.create("a/b", tasks.nothing, Cron("0 3 * * *"))
    assert "enqueued the job" in anna.post("schedule/a/b/run/")
    assert work_off() == 1
    anna.post("schedule/a/b/pause/", because="the printer is broken")
    assert schedules.get("a/b").paused_by == "anna"
    page = anna.get("schedule/a/b/change/")
    assert "the printer is broken" in page
    assert "manual by anna" in page
    anna.post("schedule/a/b/resume/")
    assert not schedules.get("a/b").is_paused
    assert "Delete the schedule" in anna.get("schedule/a/b/delete/")
    assert "is deleted" in anna.post("schedule/a/b/delete/")
    assert not Schedule.objects.exists()
    anna.get("schedule/a/b/change/", status=404)


def test_schedules_are_shown_if_this_host_does_not_know_the_zone_of_one(anna: Visitor) -> None:
    for name in ("earth", "mars"):
        schedules.create(name, tasks.nothing, Cron("0 3 * * *"))
    Schedule.objects.filter(name="mars").update(
        zone="Mars/Olympus", last_moment_us=F("moment_us") - 86_400_000_000
    )
    page = anna.get("schedule/")
    assert "earth" in page
    assert "03:00" in page
    anna.get("schedule/mars/change/")


def test_declared_schedule_can_be_run_but_not_changed(anna: Visitor) -> None:
    schedules.create("nightly", tasks.nothing, Cron("0 3 * * *"))
    Schedule.objects.update(source="code")
    page = anna.get("schedule/nightly/change/")
    assert "Declared in the code" in page
    assert "/edit/" not in page
    assert "/delete/" not in page
    assert "is declared in the code" in anna.post("schedule/nightly/edit/", **FORM)
    assert "is declared in the code" in anna.post("schedule/nightly/delete/")
    assert "/run/" in page


# -- stores ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("use_tz", [True, False])
def test_age_is_right_with_and_without_time_zones(use_tz: bool, settings: Any) -> None:
    settings.USE_TZ = use_tz
    hours = timedelta(hours=3, minutes=20)
    assert since(datetime.now(UTC) - hours) == "3 h ago"
    assert since(timezone.now() - hours) == "3 h ago"
    assert since(timezone.now() + timedelta(hours=3)) == "in 3 h"


def test_links_keep_the_chosen_backend(anna: Visitor, settings: Any) -> None:
    kind = "stoker.backend.StokerBackend"
    settings.TASKS = {
        "default": {"BACKEND": kind, "QUEUES": []},
        "other": {"BACKEND": kind, "QUEUES": [], "OPTIONS": {"CLUSTER": "other"}},
    }
    schedules.create("ours", tasks.nothing, Cron("0 3 * * *"))
    schedules.create("theirs", tasks.nothing, Cron("0 3 * * *"), backend="other")
    page = anna.get("schedule/", backend="other")
    assert "/admin/stoker/schedule/theirs/change/?backend=other" in page
    assert "ours" not in page
    page = anna.post("schedule/theirs/run/?backend=other")
    assert "theirs" in page
    assert "theirs" not in anna.get("schedule/")
    queues.pause("mail", backend="other")
    assert "?backend=other" in anna.get("job/", backend="other")
    anna.get("job/", status=404, backend="third")


def test_unreachable_store_gives_503_with_an_error(
    anna: Visitor, settings: Any, django_db_blocker: Any
) -> None:
    kind = "stoker.backend.StokerBackend"
    with django_db_blocker.unblock(), another_database(PORT="1") as alias:
        settings.TASKS = {
            "default": {"BACKEND": kind, "OPTIONS": {"BROKER": f"orm://{alias}"}},
        }
        for path in ("job/", "deadletter/", "pausedqueue/", "cluster/", "schedule/"):
            assert "errornote" in anna.get(path, status=503)


# -- the dashboard --------------------------------------------------------------------------------


def test_pages_link_the_same_page_of_the_dashboard(anna: Visitor, settings: Any) -> None:
    job = tasks.add.enqueue(1, 2)
    path = f"job/{job.id}/change/"
    assert "Open in the dashboard" not in anna.get(path)
    settings.ROOT_URLCONF = "tests.admin.urls_with_dashboard"
    assert f'<a href="/stoker/jobs/{job.id}/">Open in the dashboard</a>' in anna.get(path)
    assert '<a href="/stoker/dead-letters/">' in anna.get("deadletter/")
    assert '<a href="/stoker/">Open in the dashboard</a>' in anna.get("schedule/add/")
    page = anna.client.get(f"/stoker/jobs/{job.id}/").content.decode()
    assert f'<a href="/admin/stoker/{path}">Open in the admin</a>' in page
    assert '<form method="post" action="/admin/logout/">' in page


def test_signing_out_leads_to_the_login(anna: Visitor, settings: Any) -> None:
    settings.ROOT_URLCONF = "tests.admin.urls_with_dashboard"
    settings.LOGIN_URL = "admin:login"
    response = anna.client.post("/admin/logout/", {"next": "/stoker/"}, follow=True)
    assert response.redirect_chain == [("/stoker/", 302), ("/admin/login/?next=/stoker/", 302)]
