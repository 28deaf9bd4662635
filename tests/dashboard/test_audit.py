"""The page that keeps who did what, and its export."""

import csv
import io
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.management import call_command
from django.db import connection
from django.test import AsyncClient, Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from stoker.models import BulkOperation, DeadLetter
from stoker.operations import audit
from stoker.testing import drain
from stoker.values.ids import new_job_id
from stoker.values.progress import come_so_far, told_to

from tests.app import frail, tasks
from tests.dashboard.conftest import PREFIX
from tests.dashboard.test_doing import done
from tests.dashboard.test_pages import MOST_QUERIES

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgres]

MOST_BYTES = 60_000


def lines_of(client: Client, query: str = "") -> list[tuple[str, str, str, int, str]]:
    """Return by, operation, target, number and reason of each line of the page."""
    response = client.get(f"{PREFIX}audit/?{query}")
    assert response.status_code == 200, response.content
    return [
        (one["row"].by, one["row"].operation, one["is"].target, one["row"].done, one["row"].because)
        for one in response.context["entries"]
    ]


def exported(client: Client, query: str) -> str:
    response: Any = client.get(f"{PREFIX}audit/export/?{query}")
    assert response.status_code == 200
    assert response.streaming
    return b"".join(response.streaming_content).decode()


class Interrupted(BaseException):
    """Raised as KeyboardInterrupt is, by Ctrl-C."""


def interrupt_after_two(done: int, _total: int | None) -> None:
    if done == 2:
        raise Interrupted


@pytest.mark.parametrize(
    ("command", "operation"),
    [
        ("dead purge --state open --older-than 0s", "purge-letter"),
        ("dead requeue --all", "requeue-letter"),
        ("dead discard --all", "discard-letter"),
        ("clear default", "clear-queue"),
    ],
)
def test_interrupted_operation_is_recorded_with_what_it_has_done(
    command: str,
    operation: str,
    anna: Client,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("stoker.dead_letters.closing.AT_ONCE", 1)
    monkeypatch.setattr("stoker.queues.come_so_far", lambda *_: come_so_far(2, 3))
    for number in range(3):
        frail.broken.add(str(number))
        frail.charge.enqueue(str(number))
    if "clear" not in command:
        drain()
    with (
        caplog.at_level("INFO", "stoker.operations"),
        told_to(interrupt_after_two),
        pytest.raises(Interrupted),
    ):
        call_command("stoker", *command.split(), "--by", "carol")
    texts = [one.getMessage() for one in caplog.records if one.name == "stoker.operations"]
    assert [text.rpartition(": ")[2] for text in texts] == [
        "Started.",
        "Interrupted after 2 targets.",
    ]
    ((by, name, _, done, _),) = lines_of(anna)
    assert (by, name, done) == ("carol", operation, 2)


def test_operations_of_pages_and_commands_are_listed_the_newest_first(anna: Client) -> None:
    jobs = [tasks.add.using(queue_name="mail").enqueue(number, 1) for number in range(3)]
    done(anna, "pause-queue", queue="mail", because="lunch")
    done(anna, "cancel-job", job=jobs[0].id)
    call_command("stoker", "pause", "photos", "--by", "cron")
    call_command("stoker", "clear", "mail", "--dry-run", "--by", "cron")
    done(anna, "clear-queue", queue="mail", because="ordered twice")
    done(anna, "clear-queue", queue="mail", because="nothing is left")
    assert lines_of(anna) == [
        ("anna", "clear-queue", "mail", 2, "ordered twice"),
        ("cron", "pause-queue", "photos", 1, ""),
        ("anna", "cancel-job", jobs[0].id, 1, ""),
        ("anna", "pause-queue", "mail", 1, "lunch"),
    ]
    text = anna.get(f"{PREFIX}audit/").content.decode()
    assert f"{PREFIX}jobs/{jobs[0].id}/" in text
    assert f"{PREFIX}queues/one/?name=mail" in text


def test_refused_operation_is_not_listed(anna: Client) -> None:
    job = tasks.add.enqueue(1, 2)
    drain()
    assert "ended already" in done(anna, "cancel-job", job=job.id)
    assert anna.post(f"{PREFIX}jobs/cancel/", {"job": str(new_job_id())}).status_code == 404
    assert lines_of(anna) == []


def test_bulk_operation_is_one_line_with_a_link(anna: Client) -> None:
    for number in range(3):
        tasks.add.enqueue(number, 1)
    fields = {"operation": "move-job", "queue": "default", "to": "slow", "because": "lunch"}
    page = anna.post(f"{PREFIX}bulk/start/", fields, follow=True)
    bulk_id = str(page.context["row"].pk)
    assert lines_of(anna) == [("anna", "move-job", "queue=default", 3, "lunch")]
    assert f"{PREFIX}bulk/{bulk_id}/" in anna.get(f"{PREFIX}audit/").content.decode()
    done(anna, "undo-bulk", bulk=bulk_id)
    undo = anna.get(f"{PREFIX}audit/").context["entries"]
    assert [one["is"].title for one in undo] == ["Undo: Move", "Move"]


def test_list_of_bulk_operations_has_no_single_operations(
    anna: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = tasks.add.enqueue(1, 2)
    done(anna, "cancel-job", job=job.id)
    assert not anna.get(f"{PREFIX}bulk/").context["rows"]
    with monkeypatch.context() as patched:
        patched.setattr("stoker.operations.bulk.SCANNED", 0)
        page = anna.get(f"{PREFIX}bulk/").content.decode()
    for words in ("No bulk operation among those that were searched", "Search further back"):
        assert words in page
    assert anna.get(f"{PREFIX}bulk/{BulkOperation.objects.get().pk}/").status_code == 404


def test_dead_letters_requeued_by_filters_of_a_command_are_one_line(anna: Client) -> None:
    frail.broken.add("x")
    for _ in range(3):
        frail.charge.enqueue("x")
    drain()
    frail.broken.clear()
    call_command("stoker", "dead", "requeue", "--task", frail.charge.module_path, "--by", "cron")
    assert DeadLetter.objects.filter(state="requeued").count() == 3
    found = f"task={frail.charge.module_path}"
    assert lines_of(anna) == [("cron", "requeue-letter", found, 3, "")]


def test_filters_narrow_the_list_and_stay_in_the_addresses(anna: Client) -> None:
    for queue, because in (("mail", "lunch"), ("photos", "the mail is late"), ("x", "")):
        done(anna, "pause-queue", queue=queue, because=because)
    call_command("stoker", "pause", "slow", "--by", "cron")
    assert {line[2] for line in lines_of(anna, "q=MAIL&by=Anna")} == {"mail", "photos"}
    assert [line[1] for line in lines_of(anna, "by=cron")] == ["pause-queue"]
    assert len(lines_of(anna, "operation=pause-queue&since=1h&by=anna")) == 3
    assert lines_of(anna, "until=1h") == []
    assert lines_of(anna, "q=%25") == []
    exports = dict(anna.get(f"{PREFIX}audit/?by=cron&q=mail").context["exports"])
    assert exports["csv"] == f"{PREFIX}audit/export/?format=csv&by=cron&q=mail"
    for wrong in ("audit/?since=soon", "audit/?after=odd", "audit/export/?format=xml"):
        assert anna.get(PREFIX + wrong).status_code == 400, wrong


def test_export_has_the_lines_that_the_filters_find(anna: Client) -> None:
    formula = '=HYPERLINK("https://example.com", "lunch")'
    done(anna, "pause-queue", queue="mail", because=formula)
    done(anna, "pause-queue", queue="photos", because='"two"\nlines, é')
    head, photos, mail = csv.reader(io.StringIO(exported(anna, "format=csv"), newline=""))
    assert tuple(head) == audit.COLUMNS
    assert mail[1:9] == ["anna", "pause-queue", "mail", "1", "1", "0", "done", f"'{formula}"]
    assert photos[8] == '"two"\nlines, é'
    (line,) = exported(anna, "format=jsonl&q=mail").splitlines()
    assert json.loads(line)["because"] == formula
    assert json.loads(line)["target"] == "mail"


def fill(count: int) -> None:
    now = timezone.now()
    BulkOperation.objects.bulk_create(
        BulkOperation(
            pk=new_job_id(),
            backend="default",
            operation="pause-queue",
            filters={"target": f"<b>{number}</b>"},
            by="anna",
            state="done",
            matched=1,
            done=1,
            started_at=now - timedelta(seconds=number),
            ended_at=now,
        )
        for number in range(count)
    )


def test_export_is_bounded_and_read_in_batches(
    anna: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "MOST_EXPORTED", 25)
    monkeypatch.setattr(audit, "EXPORTED_AT_ONCE", 10)
    fill(40)
    with CaptureQueriesContext(connection) as captured:
        lines = exported(anna, "format=jsonl").splitlines()
    assert len({json.loads(line)["id"] for line in lines}) == 25
    assert sum('"stoker_bulkoperation"' in one["sql"] for one in captured.captured_queries) == 3


def test_pages_cover_all_operations_and_are_bounded(
    who_may: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "SCANNED", 60)
    fill(120)
    looker, path, seen = who_may("view_bulkoperation"), f"{PREFIX}audit/?q=%3C/b%3E", []
    while path:
        with CaptureQueriesContext(connection) as captured:
            response = looker.get(path)
        assert len(captured) <= MOST_QUERIES
        assert len(response.content) < MOST_BYTES
        assert b"<b>7</b>" not in response.content
        seen += [one["row"].pk for one in response.context["entries"]]
        path = response.context["next"]
    assert len(seen) == len(set(seen)) == 120
    assert seen == sorted(seen, reverse=True)


def test_unknown_operation_of_a_newer_version_is_listed(anna: Client) -> None:
    BulkOperation.objects.create(pk=new_job_id(), backend="default", operation="odd-thing")
    assert lines_of(anna) == [("", "odd-thing", "all", 0, "")]
    assert "odd-thing" in anna.get(f"{PREFIX}audit/").content.decode()


def test_export_streams_under_asgi(anna: Client) -> None:
    client = AsyncClient()
    client.cookies = anna.cookies

    async def texts() -> list[bytes]:
        response: Any = await client.get(f"{PREFIX}audit/export/?format=csv")
        return [text async for text in response.streaming_content]

    assert b"".join(async_to_sync(texts)()).decode().startswith("at,by,operation")
