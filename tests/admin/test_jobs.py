"""Jobs in the admin: list, details, cancel, run again."""

import re
import uuid
from typing import Any

import pytest
from django.utils import timezone

from stoker import chain, queues
from stoker.jobs.states import JobState
from stoker.models import Job, Ready, Tally
from stoker.values.ids import new_job_id

from tests.admin.conftest import Visitor
from tests.app import frail, guarded, tasks
from tests.integration.letters import dead
from tests.integration.work import claim, outside_the_database, work_off

TRAPPED: list[str] = []


class Trap:
    """An object that records when it is unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return TRAPPED.append, ("unpickled",)


def shown_jobs(page: str) -> list[str]:
    return re.findall(r"<code>([0-9a-f-]{36})</code>", page)


def test_state_filter_lists_the_jobs_of_each_state(anna: Visitor) -> None:
    letter = dead(frail.charge, "order 1")
    done = tasks.add.enqueue(1, 2)
    work_off()
    running = guarded.enter.enqueue()
    claim()
    blocked = guarded.enter.enqueue()
    claim()
    ready = tasks.add.enqueue(3, 4)
    later = tasks.add.using(run_after=600).enqueue(1, 2)
    later_cancelled = tasks.add.using(run_after=600).enqueue(1, 2)
    later_cancelled.cancel("not needed")
    by_state = {
        "FAILED": letter.job_id,
        "SUCCESSFUL": done.id,
        "RUNNING": running.id,
        "BLOCKED": blocked.id,
        "READY": ready.id,
        "DEFERRED": later.id,
        "CANCELLED": later_cancelled.id,
    }
    for state, job_id in by_state.items():
        assert shown_jobs(anna.get("job/", state=state)) == [str(job_id)], state
    everything = anna.get("job/")
    assert set(shown_jobs(everything)) == {str(one) for one in by_state.values()}
    for state in by_state:
        assert f'stoker-{state.lower()}">{state.lower()}' in everything


def test_pages_cover_all_jobs_without_overlap(
    anna: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.admin.jobs.PAGE", 3)
    tasks.add.enqueue_many([((number, 0), {}) for number in range(8)])
    seen: list[str] = []
    path = "job/"
    while path:
        page = anna.get(path)
        seen += shown_jobs(page)
        link = re.search(r'href="/admin/stoker/([^"]*)" rel="next"', page)
        path = link[1].replace("&amp;", "&") if link else ""
    assert sorted(seen) == sorted(str(pk) for pk in Job.objects.values_list("pk", flat=True))
    assert len(seen) == 8
    assert "first page" in anna.get("job/", after="nonsense")


def test_search_finds_jobs_by_id_task_error_and_queue(anna: Visitor) -> None:
    letter = dead(frail.fetch, "news")
    other = tasks.add.using(queue_name="mail").enqueue(1, 2)
    one = anna.client.get("/admin/stoker/job/", {"q": other.id})
    assert one.headers["Location"] == f"/admin/stoker/job/{other.id}/change/"
    one = anna.client.get("/admin/stoker/job/", {"q": str(letter.pk)})
    assert one.headers["Location"] == f"/admin/stoker/deadletter/{letter.pk}/change/"
    assert not shown_jobs(anna.get("job/", q=str(uuid.uuid4())))
    assert shown_jobs(anna.get("job/", q="frail.fetch")) == [str(letter.job_id)]
    assert shown_jobs(anna.get("job/", q="news is broken")) == [str(letter.job_id)]
    assert shown_jobs(anna.get("job/", task="tests.app.tasks.add")) == [other.id]
    assert shown_jobs(anna.get("job/", queue="mail")) == [other.id]


def test_search_finds_a_job_by_its_unique_key(anna: Visitor) -> None:
    result = frail.fetch.enqueue("news")
    address = f"/admin/stoker/job/{result.id}/change/"
    asked = {"q": "key:feed:news", "task": "tests.app.frail.fetch"}
    assert anna.client.get("/admin/stoker/job/", asked).headers["Location"] == address
    del asked["task"]
    assert anna.client.get("/admin/stoker/job/", asked).status_code == 200, "does not know its task"
    now = int(Job.objects.get().enqueued_at.timestamp())
    Tally.objects.create(start=now, seconds=10, queue="default", task="tests.app.frail.fetch")
    assert anna.client.get("/admin/stoker/job/", asked).headers["Location"] == address


@pytest.mark.django_db(transaction=True)
def test_pages_of_a_job_at_the_broker_show_its_call_and_that_it_is_not_listed(
    anna: Visitor, settings: Any
) -> None:
    settings.TASKS = outside_the_database()
    result = tasks.echo.enqueue("order 7")
    assert "1 job waits at the broker" in anna.get("job/")
    page = anna.get(f"job/{result.id}/change/")
    assert tasks.echo.module_path in page
    assert "order 7" in page
    assert "Cancel" in page
    for word in ("run", "hold"):
        assert f"job/{result.id}/{word}/" not in page, "such jobs cannot be changed"


@pytest.mark.redis
@pytest.mark.django_db(transaction=True)
def test_pages_show_what_the_database_knows_while_the_broker_is_away(
    anna: Visitor, settings: Any
) -> None:
    options = {"BROKER": "redis://127.0.0.1:1/0"}
    settings.TASKS = {"default": {"BACKEND": "stoker.backend.StokerBackend", "OPTIONS": options}}
    now, job_id = timezone.now(), new_job_id()
    task = tasks.echo.module_path
    Job.objects.create(pk=job_id, task=task, queue="default", package=b"", enqueued_at=now)
    for path in ("job/", f"job/{job_id}/change/", "pausedqueue/"):
        page = anna.get(path)
        assert "The broker does not answer: redis://127.0.0.1:1/0 cannot be reached: " in page
        assert task in page or path == "pausedqueue/"


def test_detail_page_shows_error_arguments_dead_letter_and_workflow(anna: Visitor) -> None:
    letter = dead(frail.charge, "order 1", note="in a hurry")
    page = anna.get(f"job/{letter.job_id}/change/")
    for text in (
        "order 1 is broken",
        "tests.app.frail.Broken",
        "frail.py",
        "in a hurry",
        "became a dead letter",
        f"/admin/stoker/deadletter/{letter.pk}/change/",
    ):
        assert text in page, text
    chain(tasks.nothing.si(), tasks.add.si(1, 2)).enqueue()
    step = Ready.objects.get().pk
    page = anna.get(f"job/{step}/change/")
    assert ">Workflow<" in page
    assert "tests.app.tasks.add" in page


def test_detail_page_explains_why_a_job_waits(anna: Visitor) -> None:
    result = tasks.nothing.enqueue()
    queues.pause("default", by="bob", because="the provider is down")
    page = anna.get(f"job/{result.id}/change/")
    assert f'data-part="/admin/stoker/job/{result.id}/why/"' in page
    part = anna.get(f"job/{result.id}/why/", part=1)
    assert "bob" in part
    assert "<html" not in part
    assert "the provider is down" in anna.get(f"job/{result.id}/why/")


def test_unreadable_job_is_shown(anna: Visitor) -> None:
    result = tasks.nothing.enqueue()
    Job.objects.update(package=b"no package")
    page = anna.get(f"job/{result.id}/change/")
    assert "cannot be opened" in page
    Job.objects.update(status="FAILED")
    assert "cannot be opened here" in anna.post(f"job/{result.id}/again/")
    assert anna.get(f"job/{uuid.uuid4()}/change/", status=404)
    assert anna.get("job/nothing/change/", status=404)


def test_pages_unpickle_nothing(anna: Visitor, settings: Any) -> None:
    pickles = {"OPTIONS": {"SERIALIZER": "pickle"}}
    settings.TASKS = {"default": {**settings.TASKS["default"], **pickles}}
    result = tasks.add.using(queue_name="mail").enqueue(Trap(), 2)
    for page in ("change", "why"):
        assert str(result.id) in anna.get(f"job/{result.id}/{page}/"), page
    assert "pages do not unpickle" in anna.get(f"job/{result.id}/change/")
    assert not TRAPPED


def test_cancel_asks_first_and_records_author_and_reason(anna: Visitor) -> None:
    result = tasks.nothing.enqueue()
    assert "Cancel this job?" in anna.get(f"job/{result.id}/cancel/")
    assert Ready.objects.exists(), "a GET request changes nothing"
    assert "The job is cancelled." in anna.post(f"job/{result.id}/cancel/", because="a mistake")
    result.refresh()
    assert (result.state, result.job.reason) == (
        JobState.CANCELLED,
        "cancelled by anna: a mistake",
    )
    assert "has ended already" in anna.post(f"job/{result.id}/cancel/")


def test_run_again_enqueues_a_job_with_the_same_call(anna: Visitor) -> None:
    result = tasks.add.using(queue_name="mail", priority=3).enqueue(1, 2)
    work_off()
    assert anna.client.get(f"/admin/stoker/job/{result.id}/again/").status_code == 405
    page = anna.post(f"job/{result.id}/again/")
    assert "Enqueued again" in page
    again = Job.objects.exclude(pk=result.id).get()
    assert (again.queue, again.priority) == ("mail", 3)
    work_off()
    assert tasks.add.get_result(str(again.pk)).return_value == 3


def test_run_again_of_a_dead_letter_is_refused(anna: Visitor) -> None:
    letter = dead(frail.charge, "order 1")
    assert "requeue that instead" in anna.post(f"job/{letter.job_id}/again/")
    assert Job.objects.count() == 1


def test_bulk_cancel_applies_to_ticked_jobs_after_confirmation(anna: Visitor) -> None:
    tasks.nothing.enqueue_many([((), {})] * 3)
    ids = [str(pk) for pk in Ready.objects.values_list("pk", flat=True)]
    asked = anna.post("job/together/", verb="cancel", ids=ids[:2])
    assert ": 2 jobs?" in asked
    assert Ready.objects.count() == 3
    told = anna.post("job/together/", verb="cancel", ids=ids[:2], confirmed="1", because="x")
    assert "2 of 2 jobs" in told
    assert [str(pk) for pk in Ready.objects.values_list("pk", flat=True)] == ids[2:]
    assert "1 of 3 jobs" in anna.post("job/together/", verb="cancel", ids=ids, confirmed="1")
    assert "Select jobs" in anna.post("job/together/", verb="cancel")
    gone = [str(uuid.uuid4())]
    assert "0 of 1 jobs" in anna.post("job/together/", verb="cancel", ids=gone, confirmed="1")


@pytest.mark.parametrize("options", [{"BROKERS": "redis://x"}, {"BROKER": "reddis://x"}])
def test_wrong_option_is_named(options: dict[str, str], anna: Visitor, settings: Any) -> None:
    backend = "stoker.backend.StokerBackend"
    settings.TASKS = {"default": {"BACKEND": backend, "OPTIONS": options}}
    response = anna.client.get("/admin/stoker/job/")
    assert response.status_code == 503
    assert re.search("BROKERS|reddis", response.content.decode())
