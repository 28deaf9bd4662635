"""Permissions and effects of the dashboard's actions: each new URL must be in a table."""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import clear_script_prefix, set_script_prefix
from django.utils import timezone

from stoker import chain, every, queues, schedules
from stoker.conf import settings_for
from stoker.dashboard.urls import urlpatterns
from stoker.jobs.states import JobState
from stoker.models import (
    BulkOperation,
    Cluster,
    DeadLetter,
    Job,
    Ready,
    Requeue,
    Schedule,
    Workflow,
)
from stoker.testing import drain

from tests.app import frail, payments, tasks
from tests.dashboard.conftest import PREFIX

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgres]

PAGES = {
    "overview": "stoker.view_job",
    "jobs": "stoker.view_job",
    "job": "stoker.view_job",
    "edit-one-job": "stoker.change_job",
    "edit-letter": "stoker.requeue_deadletter",
    "queues": "stoker.view_job",
    "queue": "stoker.view_job",
    "guards": "stoker.view_job",
    "guard": "stoker.view_job",
    "tasks": "stoker.view_job",
    "task": "stoker.view_job",
    "dead-letters": "stoker.view_deadletter",
    "dead-letter": "stoker.view_deadletter",
    "schedules": "stoker.view_schedule",
    "schedule": "stoker.view_schedule",
    "add-schedule": "stoker.add_schedule",
    "change-schedule": "stoker.change_schedule",
    "workflows": "stoker.view_workflow",
    "workflow": "stoker.view_workflow",
    "clusters": "stoker.view_cluster",
    "audit": "stoker.view_bulkoperation",
    "export-audit": "stoker.view_bulkoperation",
    "bulk-operations": "stoker.view_bulkoperation",
    "bulk": "stoker.view_bulkoperation",
    "new-bulk": "stoker.view_bulkoperation",
}
ACTIONS = {
    "cancel-job": "stoker.cancel_job",
    "run-job": "stoker.change_job",
    "hold-job": "stoker.change_job",
    "reschedule-job": "stoker.change_job",
    "prioritise-job": "stoker.change_job",
    "move-job": "stoker.change_job",
    "edit-job": "stoker.change_job",
    "again-job": "stoker.add_job",
    "pause-queue": "stoker.pause_queue",
    "resume-queue": "stoker.pause_queue",
    "clear-queue": "stoker.clear_queue",
    "limit-guard": "stoker.change_guardkey",
    "requeue-letter": "stoker.requeue_deadletter",
    "undo-letter": "stoker.requeue_deadletter",
    "discard-letter": "stoker.discard_deadletter",
    "run-schedule": "stoker.run_schedule",
    "pause-schedule": "stoker.pause_schedule",
    "delete-schedule": "stoker.delete_schedule",
    "resume-schedule": "stoker.pause_schedule",
    "cancel-workflow": "stoker.change_workflow",
    "retry-workflow": "stoker.change_workflow",
    "retry-step": "stoker.change_workflow",
    "undo-step": "stoker.change_workflow",
    "quiet-cluster": "stoker.quiet_cluster",
    "recycle-cluster": "stoker.change_cluster",
    "resize-cluster": "stoker.change_cluster",
    "resume-cluster": "stoker.quiet_cluster",
    "stop-cluster": "stoker.stop_cluster",
    "start-bulk": "stoker.view_bulkoperation",
    "pause-bulk": "stoker.view_bulkoperation",
    "resume-bulk": "stoker.view_bulkoperation",
    "stop-bulk": "stoker.view_bulkoperation",
    "undo-bulk": "stoker.view_bulkoperation",
}
ALSO_NEEDED = {
    "edit-one-job": "stoker.view_job",
    "edit-letter": "stoker.view_deadletter",
    "change-schedule": "stoker.view_job",
    "new-bulk": "stoker.change_job",
}
"""The permission to see the present arguments, which the form shows, or for the operation."""
OPEN = {"asset", "live", "palette"}
"""Static files, whether something has changed, and what checks a permission for each entry."""


def path_of(name: str) -> str:
    pattern = next(one for one in urlpatterns if one.name == name)
    return PREFIX + re.sub(r"<[^>]+>", str(uuid4()), str(pattern.pattern))


def call(client: Client, name: str) -> Any:
    return client.get(path_of(name)) if name in PAGES else client.post(path_of(name))


def test_every_url_is_in_the_tables() -> None:
    """A URL that was added without a permission fails here."""
    in_tables = {*PAGES, *ACTIONS, *OPEN}
    assert {one.name for one in urlpatterns} == in_tables, "enter it in PAGES, ACTIONS or OPEN"


FRONT = "overview"
"""It leads to another page that the user may see."""


@pytest.mark.parametrize("name", sorted({*PAGES, *ACTIONS} - {FRONT}))
def test_page_needs_its_permission(name: str, who_may: Callable[..., Client]) -> None:
    """Anonymous users are redirected to the login, users with all other permissions get 403."""
    wanted, also = {**PAGES, **ACTIONS}[name], ALSO_NEEDED.get(name)
    response = call(Client(), name)
    assert response.status_code == 302
    assert response.headers["Location"].startswith("/accounts/login/?next=/stoker/")
    others = {*PAGES.values(), *ACTIONS.values()} - {wanted}
    refused = call(who_may(*others), name)
    assert refused.status_code == 403
    assert wanted in refused.content.decode()
    if also:
        assert call(who_may(wanted), name).status_code == 403
    enough = [wanted, also] if also else [wanted]
    assert call(who_may(*enough), name).status_code not in (302, 403, 405)


@pytest.mark.parametrize(
    ("permissions", "page"),
    [
        (["view_cluster"], "clusters/"),
        (["view_schedule", "view_cluster"], "schedules/"),
        (["view_deadletter"], "dead-letters/"),
    ],
)
def test_front_page_redirects_to_the_first_permitted_page(
    permissions: list[str], page: str, who_may: Callable[..., Client]
) -> None:
    response = who_may(*permissions).get(PREFIX)
    assert (response.status_code, response.headers["Location"]) == (302, PREFIX + page)
    assert who_may("pause_queue").get(PREFIX).status_code == 403


@pytest.mark.parametrize("name", ACTIONS)
def test_action_needs_post_and_csrf_token(name: str, db: None) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.create_superuser("anna"))
    assert client.post(path_of(name)).status_code == 403
    response = client.get(path_of(name))
    assert (response.status_code, response.headers["Allow"]) == (405, "POST")


def test_live_updates_need_a_view_permission(who_may: Callable[..., Client]) -> None:
    assert Client().get(f"{PREFIX}live/").status_code == 403
    assert who_may().get(f"{PREFIX}live/").status_code == 403
    looker = who_may("view_cluster")
    assert looker.get(f"{PREFIX}live/").json()["pulse"]
    no_events = looker.get(f"{PREFIX}live/", headers={"Accept": "text/event-stream"})
    assert no_events.status_code == 204, "events need ASGI"


def test_actions_without_permission_are_disabled(who_may: Callable[..., Client]) -> None:
    queues.pause("mail")
    text = who_may("view_job").get(f"{PREFIX}queues/").content.decode()
    assert "disabled" in text
    assert "/queues/resume/" not in text
    assert "Dead letters" not in text


# -- effects --------------------------------------------------------------------------------------


def done(client: Client, name: str, **fields: str) -> str:
    """Post the action and return the notice of the next page."""
    response = client.post(path_of(name), {"back": f"{PREFIX}queues/", **fields}, follow=True)
    assert response.status_code == 200, response.content
    return str(response.context["notice"]["text"])


def test_job_is_cancelled_and_run_again(anna: Client) -> None:
    job = tasks.add.enqueue(1, 2)
    assert done(anna, "cancel-job", job=job.id, because="ordered twice") == "The job is cancelled."
    job.refresh()
    assert (job.state, job.job.reason) == (JobState.CANCELLED, "cancelled by anna: ordered twice")
    assert "ended already" in done(anna, "cancel-job", job=job.id)
    response = anna.post(f"{PREFIX}jobs/again/", {"job": job.id})
    again = Job.objects.get(status=None)
    assert response.headers["Location"] == f"{PREFIX}jobs/{again.pk}/"
    drain()
    again.refresh_from_db()
    assert again.status == "SUCCESSFUL"


def test_queue_is_paused_resumed_and_cleared(anna: Client) -> None:
    job = tasks.add.using(queue_name="mail").enqueue(1, 2)
    assert "is paused" in done(anna, "pause-queue", queue="mail", because="lunch")
    pause = queues.get("mail").paused
    assert pause is not None
    assert (pause.by, pause.because) == ("anna", "lunch")
    assert "is resumed" in done(anna, "resume-queue", queue="mail")
    assert "1 job of the queue mail cancelled" in done(anna, "clear-queue", queue="mail")
    job.refresh()
    assert job.state == JobState.CANCELLED


def test_operation_returns_to_its_page_under_a_script_name(anna: Client) -> None:
    tasks.add.using(queue_name="mail").enqueue(1, 2)

    url = path_of("pause-queue")

    def back(path: str) -> str:
        set_script_prefix("/app/")  # as the handler of a server does; the test client does not
        try:
            response = anna.post(url, {"queue": "mail", "back": path})
        finally:
            clear_script_prefix()
        return str(response.headers["Location"])

    assert back(f"/app{PREFIX}queues/?q=mail") == f"/app{PREFIX}queues/?q=mail"
    assert back(f"{PREFIX}queues/") == f"/app{PREFIX}"
    assert back(f"/application{PREFIX}queues/") == f"/app{PREFIX}"


def test_dead_letters_are_requeued_undone_and_discarded(anna: Client) -> None:
    frail.broken.add("x")
    jobs = [frail.charge.enqueue("x") for _ in range(3)]
    drain()
    letters = DeadLetter.objects.filter(job_id__in=[job.id for job in jobs])
    fault = letters[0].fingerprint
    response = anna.post(f"{PREFIX}dead-letters/requeue/", {"fingerprint": fault}, follow=True)
    notice = response.context["notice"]
    assert notice["text"] == "3 of 3 dead letters requeued."
    assert {one.state for one in letters.all()} == {"requeued"}
    fields = dict(notice["fields"])
    assert done(anna, notice["undo"], **fields) == "3 of 3 requeues undone."
    assert {one.state for one in letters.all()} == {"open"}

    frail.broken.clear()
    assert "Requeued as job" in done(anna, "requeue-letter", letter=str(letters[0].pk))
    drain()
    assert letters.filter(state="resolved").count() == 1
    assert "it is resolved" in done(
        anna, "requeue-letter", letter=str(letters.get(state="resolved").pk)
    )
    said = done(anna, "discard-letter", fingerprint=fault, because="known")
    assert said == "2 of 2 dead letters discarded."
    assert letters.filter(state="discarded", closed_by="anna", closed_because="known").count() == 2
    assert anna.post(f"{PREFIX}dead-letters/discard/").status_code == 400, "none was named"


@pytest.mark.parametrize("action", ["requeue", "discard"])
def test_operation_on_a_fault_keeps_the_filters_of_the_page(action: str, anna: Client) -> None:
    frail.broken.add("x")
    old = frail.charge.using(queue_name="mail").enqueue("x")
    drain()
    DeadLetter.objects.update(failed_at=timezone.now() - timedelta(hours=2))
    wanted = frail.charge.using(queue_name="mail").enqueue("x")
    others = [old, frail.charge.enqueue("x")]
    drain()
    page = anna.get(f"{PREFIX}dead-letters/", {"queue": "mail", "since": "1h"})
    (fault,) = page.context["faults"]
    assert fault["is"].number == 1
    response = anna.post(fault[action], follow=True)
    assert response.context["notice"]["text"].startswith("1 of 1 dead letters")
    assert DeadLetter.objects.get(job_id=wanted.id).state != "open"
    states = DeadLetter.objects.filter(job_id__in=[job.id for job in others])
    assert {one.state for one in states} == {"open"}


def test_schedule_is_run_paused_resumed_and_deleted(anna: Client) -> None:
    row = schedules.create("refresh", tasks.add, every(hours=1, args=[1, 2]))
    response = anna.post(f"{PREFIX}schedules/run/", {"schedule": row.name})
    job = Job.objects.get()
    assert response.headers["Location"] == f"{PREFIX}jobs/{job.pk}/"
    assert "is paused" in done(anna, "pause-schedule", schedule=row.name, because="lunch")
    row.refresh_from_db()
    assert (row.is_paused, row.paused_by, row.paused_because) == (True, "anna", "lunch")
    assert "is resumed" in done(anna, "resume-schedule", schedule=row.name)
    page = anna.get(f"{PREFIX}schedules/{row.pk}/").content.decode()
    assert f'name="back" value="{PREFIX}schedules/"' in page, "its page is gone afterwards"
    assert "is deleted" in done(anna, "delete-schedule", schedule=row.name)
    assert not Schedule.objects.filter(pk=row.pk).exists()


def test_workflow_is_cancelled_and_retried(anna: Client) -> None:
    flow = chain(tasks.add.si(1, 2), tasks.add.si(3, 4)).enqueue(name="order 7")
    assert "is cancelled" in done(anna, "cancel-workflow", workflow=flow.id, because="lunch")
    row = Workflow.objects.get(pk=flow.id)
    assert (row.state, row.reason) == ("CANCELLED", "cancelled by anna: lunch")
    assert "continues" in done(anna, "retry-workflow", workflow=flow.id)
    drain()
    row.refresh_from_db()
    assert row.state == "SUCCESSFUL"


def make_cluster(**info: Any) -> Cluster:
    return Cluster.objects.create(
        id=uuid4(),
        name=settings_for().cluster,
        host="host",
        pid=1,
        heartbeat_us=0,
        started_at="2026-01-01T00Z",
        info=info,
    )


def test_cluster_is_asked_to_be_quiet_to_resume_and_to_stop(anna: Client) -> None:
    cluster = make_cluster()
    done(anna, "quiet-cluster", cluster=str(cluster.pk))
    cluster.refresh_from_db()
    assert cluster.request == "quiet"
    done(anna, "resume-cluster", cluster=str(cluster.pk))
    assert "asked to stop" in done(anna, "stop-cluster", cluster=str(cluster.pk))
    cluster.refresh_from_db()
    assert cluster.request == "stop"


def test_cluster_page_shows_that_a_cluster_runs_with_single(anna: Client) -> None:
    make_cluster(single=True)
    assert "(--single)" in anna.get("/stoker/clusters/").content.decode()


def test_cluster_page_shows_how_long_other_processes_have_not_responded(anna: Client) -> None:
    make_cluster(loops={"monitor": 0.2, "pusher": 75.0})
    text = anna.get("/stoker/clusters/").content.decode()
    assert "Last turn: " in text
    assert "monitor 200 ms" in text
    assert "pusher 1 min 15 s" in text


def test_cluster_shows_the_memory_of_its_other_processes(anna: Client) -> None:
    pusher = {"role": "pusher", "pid": 8, "resident_bytes": 45 << 20}
    make_cluster(processes=[pusher, {"role": "monitor", "pid": 9, "resident_bytes": 0}])
    text = anna.get("/stoker/clusters/").content.decode()
    assert re.search("Memory: pusher 45.0\\sMB, monitor \N{EN DASH}", text)


def test_cluster_is_resized_and_its_worker_recycled(anna: Client) -> None:
    worker = {"number": 1, "id": "host:12345678:1.3", "pid": 9, "jobs_done": 3, "running": []}
    cluster = make_cluster(most_workers=4, workers=[worker])
    own = {"cluster": str(cluster.pk)}
    assert "asked to have 3 workers" in done(anna, "resize-cluster", **own, workers="3")
    assert "(3 wanted)" in anna.get("/stoker/clusters/").content.decode()
    done(anna, "resize-cluster", **own, workers="1")
    text = anna.get("/stoker/clusters/").content.decode()
    assert ">leaving</span>" in text, "it is the worker with number 1"
    assert "Recycle worker 1" not in text
    assert "already leaving" in done(anna, "recycle-cluster", **own, worker="1")
    done(anna, "resize-cluster", **own, workers="3")
    assert "asked to recycle worker 1" in done(anna, "recycle-cluster", **own, worker="1")
    assert "leaving</span>" in anna.get("/stoker/clusters/").content.decode()
    cluster.refresh_from_db()
    assert (cluster.workers, cluster.recycle) == (3, "1.3")
    for bad, sentence in (("5", "can have 1 to 4"), ("0", "can have 1 to 4"), ("²", "is not a")):
        assert sentence in done(anna, "resize-cluster", **own, workers=bad)
    assert "has no worker 2" in done(anna, "recycle-cluster", **own, worker="2")
    assert "as at its start" in done(anna, "resize-cluster", **own, workers="")
    cluster.refresh_from_db()
    assert cluster.workers is None
    done(anna, "stop-cluster", **own)
    assert "is stopping" in done(anna, "resize-cluster", **own, workers="2")
    assert "is stopping" in done(anna, "recycle-cluster", **own, worker="1")
    cluster.refresh_from_db()
    assert (cluster.workers, cluster.recycle) == (None, "1.3")


def test_recycle_before_the_first_heartbeat_of_workers_says_what_to_do(anna: Client) -> None:
    cluster = make_cluster(most_workers=4, workers=[])
    answer = done(anna, "recycle-cluster", cluster=str(cluster.pk), worker="")
    assert "names none, which is normal just after a start" in answer
    assert "Try again after the next heartbeat" in answer


@pytest.mark.parametrize(
    "back",
    [
        "https://elsewhere.example/",
        "//elsewhere.example/stoker/",
        "/admin/",
        "javascript:1",
        f"{PREFIX}../admin/logout/",
        f"{PREFIX}files/x/..",
        f"{PREFIX}jobs/../../admin/",
        f"{PREFIX}%2e%2e/admin/",
        f"{PREFIX}queues/pause/",
        "/accounts/login/?next=/stoker/",
        "/accounts/jobs/",
    ],
)
def test_foreign_back_url_leads_to_the_start_page(back: str, anna: Client) -> None:
    queues.pause("mail")
    response = anna.post(f"{PREFIX}queues/resume/", {"queue": "mail", "back": back})
    assert response.headers["Location"] == PREFIX


@pytest.mark.parametrize("back", ["//elsewhere.example/", "/\\elsewhere.example/"])
def test_redirect_to_another_site_is_refused_at_the_root(
    back: str, anna: Client, settings: Any
) -> None:
    settings.ROOT_URLCONF = "tests.dashboard.urls_at_root"
    queues.pause("mail")
    response = anna.post("/queues/resume/", {"queue": "mail", "back": back})
    assert response.headers["Location"] == "/"


@pytest.mark.parametrize(
    "back", [f"{PREFIX}jobs/?state=ready&q=a%2Fb", f"{PREFIX}queues/one/?name=mail", PREFIX]
)
def test_operation_returns_to_the_page_it_was_sent_from(back: str, anna: Client) -> None:
    queues.pause("mail")
    response = anna.post(f"{PREFIX}queues/resume/", {"queue": "mail", "back": back})
    assert response.headers["Location"] == back


# -- in bulk --------------------------------------------------------------------------------------


def test_bulk_operation_by_filters_is_previewed_started_and_undone(anna: Client) -> None:
    jobs = [payments.plain.enqueue(number, note="alice") for number in range(3)]
    payments.plain.enqueue(7, note="bob")
    found = anna.get(f"{PREFIX}jobs/?q=note%3Dalice").context["all_address_bulk"]
    preview = anna.get(found)
    assert preview.status_code == 200
    assert "3 jobs" in preview.content.decode()
    assert "note=&#x27;alice&#x27;" in preview.content.decode()
    fields = {"operation": "move-job", "q": "note=alice", "to": "slow", "because": "lunch"}
    page = anna.post(f"{PREFIX}bulk/start/", fields, follow=True)
    assert "3 of 3 jobs moved." in page.content.decode()
    assert "lunch" in page.content.decode()
    assert Job.objects.filter(queue="slow").count() == 3
    bulk_id = str(page.context["row"].pk)
    assert done(anna, "undo-bulk", bulk=bulk_id) == "3 of 3 jobs put back."
    assert not Job.objects.filter(queue="slow").exists()
    listed = anna.get(f"{PREFIX}bulk/").content.decode()
    assert listed.count(f"{PREFIX}bulk/") >= 2
    assert "3 of 3" in listed
    assert len(jobs) == 3


def test_chosen_jobs_are_changed_and_put_back(anna: Client) -> None:
    jobs = [tasks.add.enqueue(number, 1).id for number in range(3)]
    response = anna.post(f"{PREFIX}jobs/hold/", {"job": jobs}, follow=True)
    notice = response.context["notice"]
    assert notice["text"] == "3 of 3 jobs held."
    assert done(anna, notice["undo"], **dict(notice["fields"])) == "3 of 3 jobs put back."
    assert Ready.objects.count() == 3


def test_only_lists_with_open_dead_letters_offer_all_that_match(anna: Client) -> None:
    frail.broken.add("x")
    frail.charge.using(queue_name="mail").enqueue("x")
    drain()
    for state in ("", "open", "unclosed"):
        page = anna.get(f"{PREFIX}dead-letters/", {"state": state, "key": "7", "queue": "mail"})
        address = page.context["all_address_bulk"]
        assert "queue=mail" in address
        assert "key=7" in address
        assert anna.get(address).status_code == 200
    for state in ("requeued", "resolved", "discarded", "all"):
        page = anna.get(f"{PREFIX}dead-letters/", {"state": state})
        assert page.context["all_address_bulk"] == ""
        assert "All that match" not in page.content.decode()
    fields = {"operation": "discard-letter", "state": "resolved"}
    assert anna.post(f"{PREFIX}bulk/start/", fields).status_code == 400
    assert DeadLetter.objects.get().state == "open"


def fail_charges(number: int) -> None:
    frail.broken.update(f"order {one}" for one in range(number))
    for one in range(number):
        frail.charge.enqueue(f"order {one}")
    drain()
    frail.broken.clear()


def test_question_of_a_fault_promises_no_number_that_was_not_counted(
    anna: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_charges(3)
    text = anna.get(f"{PREFIX}dead-letters/").content.decode()
    assert "Discard all open dead letters of this fault? The dead letters are closed" in text
    monkeypatch.setattr("stoker.dead_letters.search.LOOKED_AT", 2)
    text = anna.get(f"{PREFIX}dead-letters/?queue=default").content.decode()
    assert "Discard all open dead letters of this fault that match the filters?" in text
    assert "There may be more of them than the 2 that were counted." in text


def test_preview_that_counted_no_match_offers_the_operations(
    anna: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.dead_letters.search.WALKED", 1)
    fail_charges(4)
    query = {"kind": "letter", "q": "order 3"}
    text = anna.get(f"{PREFIX}bulk/new/", query).content.decode()
    assert "<h1>An unknown number of open dead letters</h1>" in text
    assert "They were not counted" in text
    assert "None of those that were searched matches." in text
    assert re.findall(r"<button [^>]*disabled", text) == ["<button disabled"]
    fields = {"operation": "discard-letter", "q": "order 3"}
    page = anna.post(f"{PREFIX}bulk/start/", fields, follow=True)
    assert "1 of 1 dead letters discarded." in page.content.decode()
    text = anna.get(f"{PREFIX}bulk/new/", {"kind": "letter", "q": "order"}).content.decode()
    assert "<h1>More than 2 open dead letters</h1>" in text
    text = anna.get(f"{PREFIX}bulk/new/", {"kind": "letter", "task": "no.such"}).content.decode()
    assert "<h1>0 open dead letters</h1>" in text
    assert len(re.findall(r"<button [^>]*disabled", text)) == 3


@pytest.mark.parametrize(
    ("kind", "operation", "change", "view"),
    [
        ("job", "hold-job", "change_job", "view_job"),
        ("letter", "discard-letter", "discard_deadletter", "view_deadletter"),
    ],
)
def test_bulk_operation_by_text_needs_permission_to_see_the_targets(
    kind: str, operation: str, change: str, view: str, who_may: Callable[..., Client]
) -> None:
    """The number of targets says whether the text is in an argument or a traceback."""
    blind, seeing = (who_may("view_bulkoperation", change, *more) for more in ((), (view,)))
    for client, status in ((blind, 403), (seeing, 200)):
        page = client.get(f"{PREFIX}bulk/new/", {"kind": kind, "q": "note=alice"})
        assert page.status_code == status
        fields = {"operation": operation, "q": "note=alice"}
        assert client.post(f"{PREFIX}bulk/start/", fields, follow=True).status_code == status
        page = client.get(f"{PREFIX}bulk/new/", {"kind": kind, "queue": "default"})
        assert page.status_code == 200
        assert ("permission to see them" in page.content.decode()) == (client is blind)
    if kind == "letter":
        fault = {"task": frail.charge.module_path, "q": "alice"}
        assert blind.post(f"{PREFIX}dead-letters/discard/", fault).status_code == 403
        assert blind.post(f"{PREFIX}dead-letters/discard/", fault | {"q": ""}).status_code == 302


def test_requeue_with_other_arguments_is_previewed(anna: Client) -> None:
    frail.broken.add("x")
    frail.charge.enqueue("x", note="first")
    drain()
    frail.broken.clear()
    query = {"kind": "letter", "arguments": '{"note": "was {note}"}'}
    text = anna.get(f"{PREFIX}bulk/new/", query).content.decode()
    assert "note=&#x27;was first&#x27;" in text
    assert DeadLetter.objects.get().state == "open"
    for wrong in ("[1]", "{", '"x"'):
        assert anna.get(f"{PREFIX}bulk/new/", {**query, "arguments": wrong}).status_code == 400
    fields = {"operation": "requeue-letter", "arguments": query["arguments"]}
    assert (
        "1 of 1 dead letters"
        in anna.post(f"{PREFIX}bulk/start/", fields, follow=True).content.decode()
    )
    drain()
    job_id = Requeue.objects.get().pk
    result = frail.charge.get_result(str(job_id))
    assert (result.args, result.kwargs) == (["x", "was first"], {})


def test_pause_of_someone_else_cannot_be_undone(anna: Client) -> None:
    schedules.create("refresh", tasks.nothing, every(hours=1))
    schedules.pause("refresh", by="bob", because="lunch")
    page = anna.post(f"{PREFIX}schedules/pause/", {"schedule": "refresh"}, follow=True)
    notice = page.context["notice"]
    assert notice["text"].startswith("The schedule refresh was paused already, by bob")
    assert not notice["undo"]
    assert not BulkOperation.objects.exists()
    assert schedules.get("refresh").paused_by == "bob"


@pytest.mark.parametrize("by", ["bob", "anna"])
def test_pause_of_a_paused_queue_changes_nothing(by: str, anna: Client) -> None:
    queues.pause("mail", by=by, because="lunch")
    page = anna.post(f"{PREFIX}queues/pause/", {"queue": "mail", "because": "tea"}, follow=True)
    notice = page.context["notice"]
    told = rf"The queue mail was already paused since 20.*, by {by}: lunch\."
    assert re.fullmatch(told, notice["text"])
    assert not notice["undo"], "it would end the first pause"
    assert not BulkOperation.objects.exists()


def test_schedule_that_is_gone_is_not_deleted_again(anna: Client) -> None:
    response = anna.post(f"{PREFIX}schedules/delete/", {"schedule": "refresh"})
    assert (response.status_code, b"no schedule" in response.content) == (404, True)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"operation": "odd"},
        {"operation": "pause-queue"},
        {"operation": "move-job", "to": ""},
        {"operation": "hold-job", "since": "soon"},
        {"operation": "hold-job", "state": "failed"},
    ],
)
def test_impossible_bulk_operation_is_refused(fields: dict[str, str], anna: Client) -> None:
    assert anna.post(f"{PREFIX}bulk/start/", fields).status_code == 400
    assert anna.get(f"{PREFIX}bulk/?after=odd").status_code == 400
    assert anna.get(f"{PREFIX}bulk/new/?kind=odd").status_code == 400


def test_bulk_operation_needs_the_permission_of_its_operation(
    anna: Client, who_may: Callable[..., Client]
) -> None:
    for number in range(2):
        tasks.add.enqueue(number, 1)
    page = anna.post(f"{PREFIX}bulk/start/", {"operation": "hold-job"}, follow=True)
    bulk_id = str(page.context["row"].pk)
    looker = who_may("view_bulkoperation", "cancel_job", "requeue_deadletter")
    assert looker.get(f"{PREFIX}bulk/{bulk_id}/").status_code == 200
    for word in ("pause", "resume", "stop", "undo"):
        refused = looker.post(f"{PREFIX}bulk/{word}/", {"bulk": bulk_id})
        assert refused.status_code == 403, word
    assert looker.post(f"{PREFIX}bulk/start/", {"operation": "hold-job"}).status_code == 403
    assert looker.post(f"{PREFIX}dead-letters/undo/", {"bulk": bulk_id}).status_code == 403
    assert who_may("change_job").post(f"{PREFIX}bulk/undo/", {"bulk": bulk_id}).status_code == 403
    assert not Ready.objects.exists()
