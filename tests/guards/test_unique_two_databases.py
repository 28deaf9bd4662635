"""Unique jobs enqueued in a transaction of a database other than the queue's: the outcome is
decided when that transaction commits."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from typing import Any
from uuid import UUID

import pytest
from django.db import connections, transaction

from stoker import JobCancelled, JobState, Lock, Unique
from stoker.brokers.dispatch import Dispatch
from stoker.compat import InvalidTask, task_signals
from stoker.conf import settings_for
from stoker.exceptions import InvalidTaskOption, UnknownTask
from stoker.jobs.relay import Relay, relay_from
from stoker.models import Deferred, Job, Outgoing, UniqueKey
from stoker.store.written import moment
from stoker.testing import drain

from tests.app.tasks import add

pytestmark = [
    pytest.mark.two_databases,
    pytest.mark.django_db(transaction=True, databases=["default", "queue"]),
]


class Undo(Exception):
    """Raised to roll a transaction back."""


@pytest.fixture
def announced() -> Iterator[list[str]]:
    """The ids of jobs for which Django sent its signal."""
    ids: list[str] = []

    def receive(sender: Any, task_result: Any, **_: Any) -> None:
        ids.append(task_result.id)

    task_signals.task_enqueued.connect(receive)
    yield ids
    task_signals.task_enqueued.disconnect(receive)


def unique(mode: str = "keep") -> Any:
    return add.using(unique=Unique("{first}", on_conflict=mode))


def test_result_shows_after_the_commit_whether_it_is_a_duplicate(announced: list[str]) -> None:
    there = unique().enqueue(1, 1)
    with transaction.atomic(using="default"):
        kept = unique().enqueue(1, 2)
        new, again = unique().enqueue_many([((2, 1), {}), ((2, 2), {})])
        assert announced == [there.id]
        assert not Job.objects.using("queue").filter(pk=new.id).exists()
    assert (kept.id, kept.was_duplicate, kept.args) == (there.id, True, [1, 1])
    assert (again.id, again.was_duplicate) == (new.id, True)
    assert announced == [there.id, new.id]
    assert Job.objects.using("queue").count() == 2


@pytest.mark.parametrize("has_outbox", [True, False])
def test_duplicate_of_an_ended_job_has_its_outcome_after_the_commit(
    has_outbox: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_outbox:
        monkeypatch.setattr("stoker.jobs.enqueue.has_outbox", lambda *_: False)
    task = add.using(unique=Unique("{first}", within=3600))
    done, cancelled = task.enqueue_many([((1, 1), {}), ((2, 1), {})])
    assert cancelled.cancel()
    drain().check()
    with transaction.atomic(using="default"):
        kept, late = task.enqueue_many([((1, 2), {}), ((2, 2), {})])
    assert (kept.id, kept.was_duplicate, kept.wait(1)) == (done.id, True, 2)
    assert (late.id, late.state) == (cancelled.id, JobState.CANCELLED)
    with pytest.raises(JobCancelled):
        late.wait(1)


def test_rolled_back_enqueue_takes_no_key() -> None:
    try:
        with transaction.atomic(using="default"):
            unique().enqueue(1, 1)
            raise Undo  # noqa: TRY301 - rolls back
    except Undo:
        pass
    assert not UniqueKey.objects.using("queue").exists()


def relay_later() -> None:
    """Relay what another process has left in the outbox."""
    relay_from(settings_for(), "default", lambda: None)


def relay_one(result: Any) -> None:
    """Relay one job, as the process that enqueued it does after the commit."""
    job_ids = [UUID(result.id)]
    Relay(settings_for(), "default").relay(
        lambda: Outgoing.objects.using("default").lock_these(job_ids)
    )


@pytest.fixture
def left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the jobs in the outbox, as if this process were killed after the commit."""
    monkeypatch.setattr("stoker.jobs.relay.relay_these", lambda *_: {})


@pytest.mark.usefixtures("left_behind")
@pytest.mark.parametrize("mode", ["keep", "replace", "after"])
def test_job_of_a_task_that_the_relay_does_not_know_has_its_key(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """During a deploy the scheduler may be older than the process that enqueued."""

    def is_unknown(package: Any) -> Any:
        raise UnknownTask(package.task)

    there = unique(mode).enqueue(1, 1)
    with transaction.atomic(using="default"):
        unique(mode).enqueue(1, 2)
        new, _ = unique(mode).enqueue_many([((2, 1), {}), ((2, 2), {})])
    monkeypatch.setattr("stoker.jobs.relay.task_of", is_unknown)
    relay_later()
    assert {str(pk) for pk in Job.objects.using("queue").values_list("pk", flat=True)} == {
        there.id,
        new.id,
    }
    assert {str(one.job_id) for one in UniqueKey.objects.using("queue")} == {there.id, new.id}
    assert add.get_result(there.id).args == ([1, 2] if mode == "replace" else [1, 1])


@pytest.mark.usefixtures("left_behind")
def test_job_whose_package_the_relay_cannot_read_has_its_key() -> None:
    there = unique().enqueue(1, 1)
    with transaction.atomic(using="default"):
        unique().enqueue(1, 2)
        new = unique().enqueue(2, 1)
        unread = unique("replace").enqueue(1, 3)
    Outgoing.objects.using("default").update(package=b"of a newer release")
    relay_later()
    assert {str(pk) for pk in Job.objects.using("queue").values_list("pk", flat=True)} == {
        there.id,
        new.id,
        unread.id,
    }, "what cannot be written anew becomes a job, which fails"
    assert unique().enqueue(2, 2).id == new.id


@pytest.mark.usefixtures("left_behind")
def test_job_is_relayed_although_its_hooks_would_be_refused_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with transaction.atomic(using="default"):
        new = unique().enqueue(1, 1)

    def refuse(*_: Any) -> Any:
        raise InvalidTaskOption("the hook takes other arguments since the last deploy")

    monkeypatch.setattr("stoker.jobs.sealing.hooks_of", refuse)
    relay_later()
    assert Job.objects.using("queue").filter(pk=new.id).exists()


@pytest.mark.usefixtures("left_behind")
@pytest.mark.parametrize("mode", ["replace", "postpone"])
def test_older_call_that_is_relayed_later_does_not_replace_a_newer_one(mode: str) -> None:
    delay = {"delay": 3600} if mode == "postpone" else {}
    task = add.using(unique=Unique("{first}", on_conflict=mode, **delay))
    with transaction.atomic(using="default"):
        older = task.enqueue(1, 1)
    with transaction.atomic(using="default"):
        newer = task.enqueue(1, 2)
    relay_one(newer)
    due = list(Deferred.objects.using("queue").values_list("due_us"))
    relay_later()
    (job,) = Job.objects.using("queue").all()
    assert str(job.pk) == newer.id != older.id
    assert add.get_result(newer.id).args == [1, 2]
    assert list(Deferred.objects.using("queue").values_list("due_us")) == due
    assert not Outgoing.objects.using("default").exists()


@pytest.mark.usefixtures("left_behind")
def test_newer_call_that_is_relayed_later_replaces_an_older_one() -> None:
    there = unique("replace").enqueue(1, 1)
    with transaction.atomic(using="default"):
        unique("replace").enqueue(1, 2)
    relay_later()
    assert add.get_result(there.id).args == [1, 2]


@pytest.mark.usefixtures("left_behind")
def test_call_that_is_relayed_at_its_commit_replaces_a_job_of_a_host_with_a_fast_clock() -> None:
    there = unique("replace").enqueue(1, 1)
    with transaction.atomic(using="default"):
        newer = unique("replace").enqueue(1, 2)
    Job.objects.using("queue").update(enqueued_at=moment(time.time() + 60))
    relay_one(newer)
    assert add.get_result(there.id).args == [1, 2]


@pytest.mark.usefixtures("left_behind")
def test_guard_keys_of_replaced_jobs_are_checked_once_after_the_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the relay waits for the row of the next job while it has locked keys."""
    checked: list[tuple[int, bool]] = []
    woken: list[set[str]] = []

    def look_after(alias: str, key_ids: Collection[UUID]) -> set[str]:
        checked.append((len(key_ids), connections[alias].in_atomic_block))
        return {"of blocked jobs"}

    task = unique("replace").using(lock=Lock("lock {first}"))
    task.enqueue_many([((1, 1), {}), ((2, 1), {})])
    with transaction.atomic(using="default"):
        task.using(run_after=3600).enqueue_many([((1, 2), {}), ((2, 2), {})])
    monkeypatch.setattr("stoker.jobs.relay.look_after", look_after)
    monkeypatch.setattr(Dispatch, "wake_up", lambda _, queues, **__: woken.append(set(queues)))
    relay_later()
    assert Deferred.objects.using("queue").count() == 2
    assert checked == [(4, False)], "the key of each lock, and of each unique key's sequence"
    assert {"of blocked jobs"} in woken


def test_new_job_has_its_arguments_and_task_after_the_commit() -> None:
    with transaction.atomic(using="default"):
        new = unique().enqueue(1, 2)
    assert (new.args, new.task.module_path) == ([1, 2], add.module_path)


def test_raise_mode_is_refused_inside_a_transaction_of_another_database() -> None:
    with (
        transaction.atomic(using="default"),
        pytest.raises(InvalidTask, match="too late for Unique"),
    ):
        unique("raise").enqueue(1, 1)
    with transaction.atomic(using="queue"):
        assert not unique("raise").enqueue(1, 1).was_duplicate
