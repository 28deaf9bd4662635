"""Every page answers, makes few queries, and shows what it should."""

import html
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import OperationalError, connection
from django.db.models import F
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from stoker import Lock, chain, dead_letters, every, group, queues, schedules
from stoker.conf import settings_for
from stoker.inspect import stats
from stoker.models import Attempt, DeadLetter, Job, Schedule, Tally, Wait
from stoker.operations import wording as words
from stoker.testing import drain
from stoker.why import why

from tests.app import flows, frail, tasks
from tests.dashboard.conftest import PREFIX, running_job
from tests.integration.work import claim, outside_the_database

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgres]

VIEWS = (
    "view_job",
    "view_deadletter",
    "view_schedule",
    "view_workflow",
    "view_cluster",
    "view_bulkoperation",
)
MOST_QUERIES = 15
MOST_BYTES = 60_000

LINE = "  in a line\n"
TRAPPED: list[str] = []


class Trap:
    """An object that records when it is unpickled."""

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return TRAPPED.append, ("unpickled",)


@pytest.fixture
def ids() -> dict[str, Any]:
    """Create jobs in every state, a workflow, a schedule and a dead letter."""
    frail.broken.add("order 1")
    failed = frail.charge.enqueue("order 1")
    done = tasks.add.enqueue(1, 2)
    flow = chain(
        tasks.add.si(1, 2), group(*(tasks.add.si(n, 1) for n in range(12))), tasks.add.si(1, 1)
    ).enqueue(name="order 7")
    drain()
    frail.broken.clear()
    for queue in ("mail", "photos", "a/b?c=ü"):
        tasks.add.using(queue_name=queue, priority=5).enqueue(1, 2)
    queues.pause("mail", by="alice", because="<b>the provider</b>")
    late = tasks.add.using(run_after=3600).enqueue(1, 2)
    running = running_job()
    ready = tasks.add.enqueue(3, 4)
    row = schedules.create("refresh", tasks.add, every(hours=1, args=[1, 2]))
    letter = DeadLetter.objects.get(job_id=failed.id)
    return {
        "failed": failed.id,
        "done": done.id,
        "late": late.id,
        "ready": ready.id,
        "running": running,
        "flow": flow.id,
        "schedule": row.pk,
        "letter": letter.pk,
    }


PAGES = (
    "",
    "?last=week",
    "jobs/",
    "jobs/?state=failed",
    "jobs/?state=ready&queue=mail",
    "jobs/?state=deferred&q=add",
    "jobs/?q=nothing+like+it",
    "jobs/{failed}/",
    "jobs/{done}/",
    "jobs/{late}/",
    "jobs/{ready}/",
    "jobs/{running}/",
    "queues/",
    "queues/one/?name=mail",
    "queues/one/?name=a%2Fb%3Fc%3D%C3%BC",
    "guards/",
    "guards/?state=unique",
    "guards/?q=door",
    "tasks/",
    "tasks/one/?name=tests.app.tasks.add",
    "tasks/one/?name=gone.tasks.away",
    "dead-letters/",
    "dead-letters/?state=closed",
    "dead-letters/?q=broken",
    "dead-letters/{letter}/",
    "schedules/",
    "schedules/{schedule}/",
    "workflows/",
    "workflows/?state=successful",
    "workflows/{flow}/",
    "clusters/",
    "audit/",
)


def test_pages_make_few_queries_and_escape_their_values(
    ids: dict[str, Any], who_may: Callable[..., Client]
) -> None:
    """At most 15 queries, including those for session and permissions."""
    looker = who_may(*VIEWS)
    for path in PAGES:
        with CaptureQueriesContext(connection) as captured:
            response = looker.get(PREFIX + path.format(**ids))
        text = response.content.decode()
        assert response.status_code == 200, (path, text[:2000])
        assert len(captured) <= MOST_QUERIES, (path, [one["sql"][:150] for one in captured])
        assert "<b>the provider" not in text, path
        assert 'style="' not in text, path
        assert "<script>" not in text, path
        policy = response.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'self';"), path


def test_pages_show_errors_names_and_results(ids: dict[str, Any], anna: Client) -> None:
    def text_of(path: str) -> str:
        return anna.get(PREFIX + path.format(**ids)).content.decode()

    assert "order 1 is broken" in text_of("jobs/{failed}/")
    assert "Traceback" in text_of("jobs/{failed}/")
    assert "Broken" in text_of("dead-letters/")
    assert "&lt;b&gt;the provider&lt;/b&gt;" in text_of("queues/")
    assert "and 4 more" in text_of("workflows/{flow}/"), "a large group is shortened"
    assert "every hour" in text_of("schedules/")
    assert f"jobs/{ids['done']}/" in text_of(f"jobs/?q={ids['done']}")
    assert "a/b?c=ü" in text_of("queues/one/?name=a%2Fb%3Fc%3D%C3%BC")
    assert '<pre tabindex="0">3</pre>' in text_of("jobs/{done}/")


@pytest.mark.parametrize("page", ["jobs/{failed}/", "dead-letters/{letter}/"])
def test_older_tracebacks_are_shown_on_request(
    page: str, ids: dict[str, Any], anna: Client
) -> None:
    for number in range(1, 51):
        Attempt.objects.update_or_create(
            job_id=ids["failed"],
            number=number,
            defaults={
                "kind": "failed",
                "finished_at": timezone.now(),
                "traceback": f"error <{number}>\n{LINE * 200}",
            },
        )
    address = PREFIX + page.format(**ids)
    text = anna.get(address).content.decode()
    assert len(text.encode()) <= MOST_BYTES
    assert "error &lt;50&gt;" in text, "the newest"
    assert "error &lt;1&gt;" not in text
    assert f"{address}?errors=all" in text
    assert "error &lt;1&gt;" in anna.get(f"{address}?errors=all").content.decode()


def test_numbers_in_svg_are_not_localised(ids: dict[str, Any], anna: Client, settings: Any) -> None:
    """SVG needs 1234.5, also in languages that write 1.234,5."""
    now = int(time.time()) // 60 * 60
    Tally.objects.create(start=now - 120, seconds=60, queue="default", task="t", successful=7)
    settings.LANGUAGE_CODE = "de"
    settings.USE_THOUSAND_SEPARATOR = True
    for path in PAGES:
        text = anna.get(PREFIX + path.format(**ids)).content.decode()
        numbers = re.findall(r' (?:x|y|x1|x2|width|height|max|value)="([^"]*\d[.,][^"]*)"', text)
        assert not [one for one in numbers if "," in one], (path, numbers)
    overview = anna.get(PREFIX).content.decode()
    assert 'path class="good"' in overview
    begins = re.findall(r'data-begin="([^"]*)"', overview)
    assert begins
    assert all(one.isdigit() for one in begins), begins


@pytest.mark.parametrize("use_tz", [True, False])
def test_age_is_right_with_and_without_time_zones(use_tz: bool, settings: Any) -> None:
    settings.USE_TZ = use_tz
    assert words.since(datetime.now(UTC) - timedelta(hours=2, seconds=30)) == "2 h ago"
    assert words.since(timezone.now() + timedelta(days=4, minutes=1)) == "in 4 d"


def test_pages_cover_all_jobs_in_order(anna: Client) -> None:
    """Each job is on exactly one page, the newest first."""
    jobs = tasks.nothing.enqueue_many([((), {})] * 120)
    found: list[str] = []
    path: str | None = f"{PREFIX}jobs/"
    while path:
        response = anna.get(path)
        found += [str(row.job.pk) for row in response.context["rows"]]
        path = response.context["next"]
    assert found == [job.id for job in reversed(jobs)]


def test_search_shows_jobs_dead_letters_and_workflows(ids: dict[str, Any], anna: Client) -> None:
    failed = anna.get(f"{PREFIX}jobs/?q=order+1+is+broken")
    assert [str(row.job.pk) for row in failed.context["rows"]] == [ids["failed"]]
    assert f"dead-letters/{ids['letter']}/".encode() in failed.content
    for name, page in (("letter", "dead-letters"), ("flow", "workflows"), ("done", "jobs")):
        found = anna.get(f"{PREFIX}jobs/?q={ids[name]}")
        assert f"{page}/{ids[name]}".encode() in found.content, name
    assert anna.get(f"{PREFIX}dead-letters/?q={ids['letter']}").context["exact"]


def test_search_shows_only_what_the_user_may_see(
    ids: dict[str, Any], who_may: Callable[..., Client]
) -> None:
    text = who_may("view_job").get(f"{PREFIX}jobs/?q={ids['letter']}").content
    assert b"dead-letters/" not in text
    assert who_may("view_job").get(f"{PREFIX}jobs/?q=broken").status_code == 200


def test_filters_are_menus_and_stay_in_the_address(ids: dict[str, Any], anna: Client) -> None:
    query = f"task={tasks.add.module_path}&queue=mail&since=2h&until=1m&q=x&state=successful"
    response = anna.get(f"{PREFIX}jobs/?{query}")
    text = response.content.decode()
    assert f" selected>{tasks.add.module_path}</option>" in text
    assert '<option value="mail" selected>mail</option>' in text
    for name in ("task", "queue", "since", "until", "q"):
        assert f"{name}=" in response.context["states"][0]["address"], name
    assert anna.get(f"{PREFIX}jobs/?since=soon").status_code == 400
    assert anna.get(f"{PREFIX}dead-letters/?until=soon").status_code == 400
    assert (
        anna.get(f"{PREFIX}dead-letters/?{query.replace('successful', 'open')}").status_code == 200
    )


def test_search_without_index_continues_over_pages(
    anna: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stoker.inspect import jobs as job_search

    monkeypatch.setattr(job_search, "READ", 10)
    wanted = tasks.add.enqueue(1, 2)
    tasks.nothing.enqueue_many([((), {})] * 25)
    response = anna.get(f"{PREFIX}jobs/?q=tasks.add")
    looks = 1
    while not response.context["rows"]:
        assert response.context["is_cut"]
        assert b"Search further back" in response.content
        response = anna.get(response.context["next"])
        looks += 1
    assert [str(row.job.pk) for row in response.context["rows"]] == [wanted.id]
    assert looks == 3


@pytest.mark.parametrize(
    "path",
    [
        "jobs/?state=odd",
        "jobs/?after=odd",
        "jobs/?state=ready&after=1~2~3",
        "dead-letters/?state=odd",
        "dead-letters/?after=odd",
        "workflows/?state=odd",
        "workflows/?after=odd",
        "jobs/?q=%00",
    ],
)
def test_invalid_query_gives_400(path: str, anna: Client) -> None:
    response = anna.get(PREFIX + path)
    assert response.status_code == 400
    assert b"<h1>" in response.content


@pytest.mark.parametrize("kind", ["jobs", "dead-letters", "schedules", "workflows"])
def test_unknown_id_gives_404(kind: str, anna: Client) -> None:
    response = anna.get(f"{PREFIX}{kind}/{UUID(int=1)}/")
    assert response.status_code == 404
    assert b"There is no" in response.content


def test_job_that_only_an_unreachable_broker_may_have_gives_503(
    anna: Client, settings: Any
) -> None:
    settings.TASKS = {
        "default": {
            "BACKEND": "stoker.backend.StokerBackend",
            "OPTIONS": {"BROKER": "redis://127.0.0.1:1/0"},
        }
    }
    response = anna.get(f"{PREFIX}jobs/{uuid4()}/")
    assert response.status_code == 503
    assert b"Unreachable" in response.content


def test_unreachable_users_database_gives_503(anna: Client, settings: Any) -> None:
    """The session's user cannot be read either."""
    # The login middleware would ask for the user before any view does.
    settings.MIDDLEWARE = [one for one in settings.MIDDLEWARE if "LoginRequired" not in one]

    def away(*_: Any) -> None:
        raise OperationalError("connection refused at 10.0.0.7")

    with connection.execute_wrapper(away):
        page, word = anna.get(PREFIX), anna.get(f"{PREFIX}live/")
    assert page.status_code == 503
    assert page.content.decode().startswith("The database does not answer.")
    assert word.json() == {"pulse": "unknown"}, (
        "the browser then reloads the page, which explains it"
    )


def test_missing_authentication_middleware_raises(anna: Client, settings: Any) -> None:
    settings.MIDDLEWARE = ["django.middleware.csrf.CsrfViewMiddleware"]
    with pytest.raises(ImproperlyConfigured, match="AuthenticationMiddleware to MIDDLEWARE"):
        anna.get(PREFIX)


def test_pages_unpickle_nothing(anna: Client, settings: Any) -> None:
    pickles = {"OPTIONS": {"SERIALIZER": "pickle"}}
    settings.TASKS = {"default": {**settings.TASKS["default"], **pickles}}
    result = tasks.add.enqueue(Trap(), 2)
    response = anna.get(f"{PREFIX}jobs/{result.id}/")
    assert b"pages do not unpickle" in response.content
    assert not TRAPPED


def test_several_backends_can_be_chosen(anna: Client, settings: Any) -> None:
    one = settings.TASKS["default"]
    assert b"<select" not in anna.get(PREFIX).content
    settings.TASKS = {"default": one, "other": {**one, "OPTIONS": {"CLUSTER": "other"}}}
    text = anna.get(f"{PREFIX}?backend=other").content.decode()
    assert '<option value="other" selected>other</option>' in text
    assert 'href="/stoker/jobs/?backend=other"' in text
    assert anna.get(f"{PREFIX}?backend=third").status_code == 404


def test_static_files_are_cached_by_versioned_url(anna: Client) -> None:
    text = anna.get(PREFIX).content.decode()
    address = text.partition('<script src="')[2].partition('"')[0]
    response = Client().get(address)
    assert response.status_code == 200
    assert "immutable" in response.headers["Cache-Control"]
    assert response.headers["Content-Type"].startswith("text/javascript")
    assert "no-cache" in Client().get(f"{PREFIX}files/old/dashboard.css").headers["Cache-Control"]
    assert Client().get(f"{PREFIX}files/old/secrets.txt").status_code == 404


def test_waiting_job_shows_why(anna: Client) -> None:
    job = tasks.add.enqueue(1, 2)
    response = anna.get(f"{PREFIX}jobs/{job.id}/")
    assert response.status_code == 200
    assert response.context["why"].sentence in html.unescape(response.content.decode())


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (None, "\N{EN DASH}"),
        (0.0042, "4 ms"),
        (4.21, "4.2 s"),
        (42, "42 s"),
        (200, "3 min 20 s"),
        (3600, "1 h"),
        (7500, "2 h 5 min"),
        (90000, "1 d 1 h"),
    ],
)
def test_durations_are_short(seconds: float | None, said: str) -> None:
    assert words.duration(seconds) == said


def test_page_of_large_workflow_makes_few_queries(anna: Client) -> None:
    flow = group(*(flows.member.si(n, 0.0) for n in range(900))).enqueue(name="large")
    with CaptureQueriesContext(connection) as captured:
        response = anna.get(f"{PREFIX}workflows/{flow.id}/")
    assert response.status_code == 200
    assert len(captured) <= MOST_QUERIES
    assert "and 892 more" in response.content.decode()


def test_paused_queue_says_that_its_jobs_start_when_it_is_resumed(anna: Client) -> None:
    tasks.add.using(queue_name="mail").enqueue(1, 2)
    page = f"{PREFIX}queues/one/?name=mail"
    assert "could start now" in anna.get(page).content.decode()
    queues.pause("mail")
    text = anna.get(page).content.decode()
    assert "could start now" not in text
    assert "start when the queue is resumed" in text


def test_cancelled_workflow_says_that_a_retry_begins_the_other_steps(anna: Client) -> None:
    flow = chain(tasks.add.si(1, 2), tasks.add.si(3, 4)).enqueue()
    flow.cancel()
    text = anna.get(f"{PREFIX}workflows/{flow.id}/").content.decode()
    assert "retry-workflow" in text or "Retry" in text
    assert "never" not in text
    assert "only after a retry" in text


def test_overview_and_monitor_count_the_same_dead_letters(
    ids: dict[str, Any], anna: Client
) -> None:
    dead_letters.requeue(ids["letter"])
    shown = anna.get(PREFIX).context["letters"].number
    assert shown == stats.dead_letters(settings_for()).total == 1


def test_schedules_are_found_by_name_and_by_task(anna: Client) -> None:
    schedules.create("refresh", tasks.add, every(hours=1, args=[1, 2]))
    schedules.create("clean", tasks.echo, every(hours=1, args=["x"]))
    for text, found, other in (("FRESH", "refresh", "clean"), ("tasks.echo", "clean", "refresh")):
        page = anna.get(f"{PREFIX}schedules/", {"q": text}).content.decode()
        assert f"<b>{found}</b>" in page, text
        assert f"<b>{other}</b>" not in page, text
    page = anna.get(f"{PREFIX}schedules/?q=none").content.decode()
    assert "There is no such schedule" in page


def test_schedules_are_shown_if_this_host_does_not_know_the_zone_of_one(anna: Client) -> None:
    schedules.create("earth", tasks.nothing, every(hours=1))
    mars = schedules.create("mars", tasks.nothing, every(hours=1))
    Schedule.objects.filter(pk=mars.pk).update(
        zone="Mars/Olympus", last_moment_us=F("moment_us") - 3_600_000_000
    )
    page = anna.get(f"{PREFIX}schedules/").content.decode()
    assert "<b>earth</b>" in page
    assert "<b>mars</b>" in page
    assert anna.get(f"{PREFIX}schedules/{mars.pk}/").status_code == 200


def test_arguments_of_a_schedule_need_the_permission_to_see_jobs(
    ids: dict[str, Any], who_may: Callable[..., Client]
) -> None:
    schedules.create("secret", tasks.add, every(hours=1, args=[4711, 2]))
    row = schedules.get("secret")
    page = f"{PREFIX}schedules/{row.pk}/"
    text = who_may("view_schedule").get(page).content.decode()
    assert "4711" not in text
    assert "stoker.view_job" in text
    assert "4711" in who_may("view_schedule", "view_job").get(page).content.decode()


def test_arguments_are_counted_from_one_in_the_dashboard(ids: dict[str, Any], anna: Client) -> None:
    text = anna.get(f"{PREFIX}jobs/{ids['ready']}/").content.decode()
    assert '<dt class="mono">0</dt>' not in text


def test_deferred_job_says_when_it_is_due(ids: dict[str, Any], anna: Client) -> None:
    text = re.sub(r"<[^>]+>", "", anna.get(f"{PREFIX}jobs/{ids['late']}/").content.decode())
    assert "until in" not in text
    assert re.search(r"due in \d+ (min|h)", text)


def test_page_of_a_job_at_the_broker_shows_its_call(anna: Client, settings: Any) -> None:
    settings.TASKS = outside_the_database()
    result = tasks.echo.using(run_after=3600).enqueue("order <7>")
    page = anna.get(f"{PREFIX}jobs/{result.id}/").content.decode()
    assert f"{tasks.echo.module_path}</a>" in page
    assert "order &lt;7&gt;" in page
    assert re.search(r"due in \d+ (min|h)", re.sub(r"<[^>]+>", "", page))
    assert "Not before" in page
    assert "Cancel" in page
    for label in ("Edit arguments", "Run now", "Reschedule", "Hold", "Move"):
        assert label not in page, "such jobs cannot be changed"


def test_lists_say_how_many_jobs_wait_at_the_broker(anna: Client, settings: Any) -> None:
    settings.TASKS = outside_the_database()
    tasks.echo.enqueue("order 7")
    told = "1 job waits at the broker. Of these, this list has only jobs whose first attempt"
    assert "1 job waits at the broker." in anna.get(f"{PREFIX}bulk/new/").content.decode()
    for path in ("jobs/", "jobs/?state=ready", "queues/one/?name=default"):
        assert told in anna.get(f"{PREFIX}{path}").content.decode(), path
    for path in ("jobs/?state=failed", "jobs/?queue=mail"):
        assert "at the broker" not in anna.get(f"{PREFIX}{path}").content.decode(), path
    claim()
    page = anna.get(f"{PREFIX}jobs/?state=running").content.decode()
    assert "1 job from the broker runs. Of these" in page
    assert "No matching job" not in page


def test_job_at_the_broker_is_found_by_its_id(anna: Client, settings: Any) -> None:
    settings.TASKS = outside_the_database()
    result = tasks.echo.enqueue("order 7")
    page = anna.get(f"{PREFIX}jobs/?q={result.id}").content.decode()
    assert f'href="{PREFIX}jobs/{result.id}/"' in page
    assert "No matching job" not in page
    assert tasks.echo.name in page
    assert "No matching job" in anna.get(f"{PREFIX}jobs/?q={result.id[:-4]}").content.decode()


def test_overview_does_not_say_that_no_job_waits_at_the_broker(anna: Client, settings: Any) -> None:
    settings.TASKS = outside_the_database()
    assert "none waits" in anna.get(PREFIX).content.decode()
    tasks.echo.enqueue("order 7")
    page = anna.get(PREFIX).content.decode()
    assert "at the broker, their age is unknown" in page
    assert "none waits" not in page


def test_job_that_failed_once_has_one_attempt(ids: dict[str, Any]) -> None:
    sentence = why(settings_for(), UUID(ids["failed"])).sentence
    assert "after 1 attempt:" in sentence or re.search(r"after [2-9] attempts:", sentence)


def test_page_of_an_ended_job_shows_what_it_waited_for(anna: Client) -> None:
    job = tasks.add.using(lock=Lock("<b>feed:7")).enqueue(1, 2)
    place = {"attempts": 0, "began_us": 1, "times": 2}
    wait = {"kind": "lock", "name": "lock <b>feed:7", "total_us": 180_000_000}
    Wait.objects.create(job_id=job.id, **place, **wait)
    Job.objects.update(enqueued_at=F("enqueued_at") - timedelta(seconds=200))
    drain()
    page = anna.get(f"{PREFIX}jobs/{job.id}/").content.decode()
    told = "3 min 0 s blocked by lock &lt;b&gt;feed:7 (2 times), "
    assert page.count(told) == 2, "in the timeline and in the details"
    assert '<b>Waited</b> <span class="faint">3 min' in page
    assert "in the queue or with a busy worker" in page
