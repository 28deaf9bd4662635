"""Queues: listed, paused, resumed, cleared."""

import json
import re
from typing import Any
from uuid import uuid4

import pytest
from django.core.management import call_command
from django.db import connection, transaction

from stoker import queues
from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import ClaimRequest
from stoker.brokers.orm import broker as orm
from stoker.conf import settings_for
from stoker.exceptions import QueueNotFound
from stoker.jobs.states import JobState
from stoker.models import Job, PausedQueue, Ready
from stoker.models.paused_queue import PausedQueueQuerySet
from stoker.store.engines import engine_of
from stoker.store.written import Written
from stoker.testing import drain
from stoker.values.progress import told_to

from tests.app import guarded, tasks
from tests.conformance.stands import message

pytestmark = pytest.mark.django_db(transaction=True)

_ID = uuid4()
MANY = [f"queue {number:04}" for number in range(1_500)]
"""By default MariaDB and MySQL end a recursive statement after 1,000 steps."""


def say(*arguments: str, capsys: pytest.CaptureFixture[str]) -> str:
    call_command("stoker", *arguments)
    return capsys.readouterr().out.strip()


def test_pause_records_author_and_reason_until_resume() -> None:
    pause = queues.pause("mail", by="alice", because="the provider is down")
    assert (pause.by, pause.because) == ("alice", "the provider is down")
    again = queues.pause("mail", by="bob")
    assert again == pause, "the first pause is kept"
    assert queues.get("mail").paused == pause
    assert [one.name for one in queues.list() if one.paused] == ["mail"]
    assert queues.resume("mail")
    assert not queues.resume("mail")
    assert queues.get("mail").paused is None


def test_pause_rolls_back_with_its_transaction() -> None:
    with transaction.atomic():
        queues.pause("mail")
        transaction.set_rollback(True)
    assert not PausedQueue.objects.exists()


def test_unstorable_characters_of_reasons_are_escaped() -> None:
    pause = queues.pause("mail", by="al\x00ice", because="\ud800" + "é" * 300)
    assert (pause.by, pause.because) == ("al\\x00ice", "\\ud800" + "é" * 249)
    result = tasks.add.enqueue(1, 2)
    assert queues.clear("default", because="\x00").done == 1
    result.refresh()
    assert result.job.reason == "the queue was cleared: \\x00"


@pytest.mark.parametrize("limit", [0, -5, 2**63, 1.5, True])
def test_invalid_limit_raises_value_error(limit: Any) -> None:
    tasks.add.enqueue(1, 2)
    with pytest.raises(ValueError, match=r"limit=.* must be"):
        queues.clear("default", limit=limit)
    assert not Job.objects.exclude(status=None).exists()


@pytest.mark.parametrize("name", ["", "x" * 101, "a\x00"])
def test_invalid_queue_name_raises_queue_not_found(name: str) -> None:
    for act in (queues.pause, queues.resume, queues.clear):
        with pytest.raises(QueueNotFound, match="1 to 100 characters"):
            act(name)


def test_unknown_queue_name_raises_queue_not_found(settings: Any) -> None:
    options = settings.TASKS["default"]
    settings.TASKS = {"default": {**options, "QUEUES": ["default", "mail"]}}
    with pytest.raises(QueueNotFound, match="has default, mail, and no job is in a queue"):
        queues.pause("mial")
    with pytest.raises(QueueNotFound):
        queues.get("mial")
    queues.pause("mail")


def test_drain_skips_paused_queues() -> None:
    queues.pause("mail")
    waits = tasks.add.using(queue_name="mail").enqueue(1, 2)
    runs = tasks.add.enqueue(3, 4)
    assert [ran.id for ran in drain()] == [runs.id]
    waits.refresh()
    assert waits.state is JobState.READY
    queues.resume("mail")
    assert [ran.id for ran in drain()] == [waits.id]


def test_clear_cancels_ready_and_deferred_jobs_and_keeps_their_rows() -> None:
    ready = [tasks.nothing.using(queue_name="mail").enqueue() for _ in range(3)]
    deferred = tasks.nothing.using(queue_name="mail", run_after=3600).enqueue()
    other = tasks.nothing.enqueue()
    assert queues.clear("mail", dry_run=True) == queues.Cleared(4, 0)
    assert queues.clear("mail", limit=1, by="alice", because="old").done == 1
    assert queues.clear("mail", by="alice", because="old") == queues.Cleared(3, 3)
    for result in (*ready, deferred):
        job = Job.objects.get(pk=result.id)
        assert job.status == Job.Status.CANCELLED
        assert job.reason == "the queue was cleared by alice: old"
    other.refresh()
    assert other.state is JobState.READY
    assert queues.clear("mail") == queues.Cleared(0, 0)


def test_clear_cancels_blocked_jobs_but_not_running_ones() -> None:
    settings = settings_for()
    running = guarded.enter.enqueue()
    held = broker_for(settings).claim(ClaimRequest(1, holder=_ID, lease_seconds=60))
    blocked = guarded.enter.enqueue()
    assert broker_for(settings).claim(ClaimRequest(1, holder=_ID, lease_seconds=60)) == []
    assert queues.clear("default") == queues.Cleared(1, 1)
    blocked.refresh()
    assert blocked.state is JobState.CANCELLED
    running.refresh()
    assert running.state is JobState.RUNNING
    assert len(held) == 1


def test_clear_works_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orm, "LISTED_AT_ONCE", 2)
    tasks.nothing.enqueue_many([((), {})] * 7)
    assert queues.clear("default", limit=5) == queues.Cleared(5, 5)
    assert queues.clear("default") == queues.Cleared(2, 2)


def test_clear_reports_its_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orm, "LISTED_AT_ONCE", 2)
    tasks.nothing.enqueue_many([((), {})] * 5)
    told: list[tuple[int, int | None]] = []
    with told_to(lambda done, total: told.append((done, total))):
        queues.clear("default")
    assert told == [(2, 5), (4, 5), (5, 5)]


def test_commands_pause_clear_and_resume_a_queue(capsys: pytest.CaptureFixture[str]) -> None:
    tasks.nothing.using(queue_name="mail").enqueue()
    told = say("pause", "mail", "--by", "alice", "--because", "it is down", capsys=capsys)
    assert re.match(r"The queue mail is paused since [-0-9]+ [:0-9]+ UTC, by alice", told)
    assert told.endswith(", by alice: it is down.")
    assert told.removeprefix("The queue ").rstrip(".") in say("info", capsys=capsys)
    (mail,) = (
        one
        for one in json.loads(say("info", "--json", capsys=capsys))["queues"]
        if one["name"] == "mail"
    )
    assert (mail["paused"]["by"], mail["paused"]["because"]) == ("alice", "it is down")
    again = json.loads(say("pause", "mail", "--json", capsys=capsys))
    assert again == {"queue": "mail", "paused": mail["paused"]}
    rehearsal = say("clear", "mail", "--dry-run", capsys=capsys)
    assert rehearsal == "1 job of the queue mail would be cancelled."
    assert say("clear", "mail", capsys=capsys) == "1 job of the queue mail cancelled."
    assert json.loads(say("clear", "mail", "--json", capsys=capsys)) == {
        "queue": "mail", "matched": 0, "done": 0, "not_kept": 0, "dry_run": False,
    }  # fmt: skip
    assert say("resume", "mail", capsys=capsys) == "The queue mail is resumed."
    assert say("resume", "mail", capsys=capsys) == "The queue mail was not paused."
    assert json.loads(say("resume", "mail", "--json", capsys=capsys))["was_paused"] is False


def test_all_of_many_queues_are_claimed_and_listed() -> None:
    engine_of("default").insert_jobs([message(queue=name) for name in MANY])
    assert sorted(Ready.objects.queues()) == MANY
    assert [one.name for one in queues.list() if one.oldest_ready_seconds is not None] == MANY


def test_claim_from_many_queues_takes_few_statements(django_assert_max_num_queries: Any) -> None:
    broker = broker_for(settings_for())
    jobs = [message(queue=queue, priority=9) for queue in MANY[:250]]
    broker.enqueue([*jobs, *(message(queue=queue) for queue in MANY[:250])])
    with django_assert_max_num_queries(15):
        claimed = broker.claim(ClaimRequest(5, holder=uuid4(), lease_seconds=60))
    assert [one.job_id for one in claimed] == sorted(job.job_id for job in jobs)[:5]


def test_all_of_many_queues_with_jobs_that_one_key_blocks_are_found() -> None:
    engine, (key, *job_ids) = engine_of("default"), [uuid4() for _ in range(1 + len(MANY))]
    names = ("since_us", "key_id", "job_id", "queue", "rank", "attempts", "crashes", "guards")
    write = Written(connection).id
    rows = [
        (0, write(key), write(job_id), name, 0, 0, 0, 1)
        for job_id, name in zip(job_ids, MANY, strict=True)
    ]
    engine.insert_rows("stoker_blocked", names, rows)
    assert sorted(engine.lines_of([key])) == [(key, name) for name in MANY]


@pytest.mark.mariadb
def test_pause_of_a_name_that_the_database_takes_for_another_is_refused() -> None:
    queues.pause("Mail", by="alice")
    with pytest.raises(QueueNotFound, match="'mail' beside 'Mail', which is paused"):
        queues.pause("mail")
    assert [(row.queue, row.by) for row in PausedQueue.objects.all()] == [("Mail", "alice")]


def test_pause_that_is_resumed_at_once_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    create = PausedQueueQuerySet.bulk_create

    def resumed(rows: Any, new: Any, **options: Any) -> Any:
        created = create(rows, new, **options)
        rows.resume(new[0].queue)
        return created

    monkeypatch.setattr(PausedQueueQuerySet, "bulk_create", resumed)
    assert queues.pause("mail", by="alice").by == "alice"
