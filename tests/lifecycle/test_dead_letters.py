"""The table of dead letters: one row for each logical job, however often it fails."""

import threading
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from stoker.models import DeadLetter
from stoker.values.ids import following_job_id, new_job_id

WRITERS, ROUNDS = 2, 20


def failure(identity: str, **values: object) -> DeadLetter:
    """Return an entry for a job that has failed for good."""
    now = timezone.now()
    given = {
        "job_id": new_job_id(),
        "attempts": 3,
        "reason": "error",
        "package": b"\x00\xff",
        **values,
    }
    return DeadLetter(
        id=new_job_id(),
        identity=identity,
        task="shop.tasks.send",
        queue="default",
        first_failed_at=now,
        failed_at=now,
        **given,
    )


@pytest.mark.django_db
def test_further_failure_updates_the_entry() -> None:
    (first,) = DeadLetter.objects.upsert([failure("feed 7", message="no", priority=-5)])
    later = failure(
        "feed 7", message='still \\ "no", {1}\n%s', package=b"newer", priority=9, reason="timeout"
    )
    later.failed_at = timezone.now() + timedelta(hours=1)
    (second,) = DeadLetter.objects.upsert([later])
    assert (second.pk, second.failure_count) == (first.pk, 2)
    assert (second.first_failed_at, second.failed_at) == (first.first_failed_at, later.failed_at)
    assert (second.job_id, second.message, second.reason) == (
        later.job_id,
        later.message,
        "timeout",
    )
    assert (bytes(second.package), second.priority) == (b"newer", 9)


@pytest.mark.django_db
def test_failure_recorded_twice_is_counted_once() -> None:
    """With a broker outside the store an outcome may be recorded twice."""
    once = failure("feed 7")
    DeadLetter.objects.upsert([once])
    DeadLetter.objects.upsert([once])
    assert DeadLetter.objects.get().failure_count == 1


@pytest.mark.django_db
def test_two_failures_of_one_key_in_a_batch_are_both_counted() -> None:
    entries = [failure("feed 7"), failure("feed 8"), failure("feed 7", message="the last")]
    stored = DeadLetter.objects.upsert(entries)
    assert [(one.identity, one.failure_count) for one in stored] == [("feed 7", 2), ("feed 8", 1)]
    assert stored[0].message == "the last"


@pytest.mark.django_db
@pytest.mark.parametrize("state", ["resolved", "discarded"])
def test_failure_reopens_a_closed_entry_with_new_counts(state: str) -> None:
    DeadLetter.objects.upsert([failure("feed 7")])
    DeadLetter.objects.update(state=state, failure_count=9, requeued_count=9, closed_by="alice")
    (entry,) = DeadLetter.objects.upsert([failure("feed 7")])
    assert (entry.state, entry.failure_count, entry.requeued_count) == ("open", 1, 0)
    assert (entry.closed_by, entry.closed_at) == ("", None)


@pytest.mark.django_db
@pytest.mark.postgres
def test_batch_takes_two_statements() -> None:
    batch = [failure(str(uuid4())) for _ in range(400)]
    with CaptureQueriesContext(
        connection,
    ) as queries:
        DeadLetter.objects.upsert(batch)
    assert len(queries) == 2
    assert DeadLetter.objects.count() == 400


@pytest.mark.django_db(transaction=True)
def test_concurrent_writers_of_the_same_entries_are_both_counted() -> None:
    """Each writer has its own connection and writes in the opposite order."""
    identities = [f"feed {number}" for number in range(5)]
    barrier = threading.Barrier(WRITERS)
    errors: list[BaseException] = []

    def write(step: int) -> None:
        try:
            for _ in range(ROUNDS):
                barrier.wait(60)
                DeadLetter.objects.upsert([failure(one) for one in identities[::step]])
        except BaseException as error:  # noqa: BLE001 - told in the test's own thread
            errors.append(error)
            barrier.abort()
        finally:
            connection.close()

    threads = [threading.Thread(target=write, args=(step,)) for step in (1, -1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    counts = dict(DeadLetter.objects.values_list("identity", "failure_count"))
    assert counts == dict.fromkeys(identities, WRITERS * ROUNDS)


def test_following_id_sorts_between_its_predecessor_and_later_ids() -> None:
    first = new_job_id()
    later = [following_job_id(first) for _ in range(100)]
    assert len({first, *later}) == 101
    assert all(first < one < UUID(int=first.int + (1 << 50)) for one in later)
