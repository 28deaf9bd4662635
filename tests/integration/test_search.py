"""Search jobs and dead letters by ids, errors and arguments, a bounded number of rows at a time."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest

from stoker import dead_letters
from stoker.conf import settings_for
from stoker.inspect import jobs as job_search
from stoker.inspect.jobs import JobFilter, JobPage, JobSearch
from stoker.jobs import matching
from stoker.models import Cluster, DeadLetter, Job
from stoker.testing import drain

from tests.app import frail, payments, tasks
from tests.integration.letters import dead

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("nothing_broken")]


def page_of(limit: int = 50, after: str | None = None, **wanted: Any) -> JobPage:
    return JobSearch(settings_for(), JobFilter(**wanted)).page(limit, after)


def found(**wanted: Any) -> list[str]:
    return [str(job.pk) for job in page_of(**wanted).jobs]


def ids_of(results: Sequence[Any]) -> list[str]:
    """Return the ids, the newest first."""
    return sorted((one.id for one in results), reverse=True)


@pytest.mark.parametrize(
    "text",
    [
        "alice@example.com",
        "ALICE@example",
        "note=alice@example.com",
        "Zürich",
        'say "no"',
        "1.10",
        "2030-01-31",
        "0b5ff65e-1ea5-4a35-b1c5-a1d9e1e1ab11",
        "order_id=7",
    ],
)
def test_text_in_arguments_is_found(text: str) -> None:
    more: dict[str, Any] = {
        "where": ["Zürich", ("x", 'say "no"')],
        "price": Decimal("1.10"),
        "due": datetime(2030, 1, 31, 6, tzinfo=UTC),
        "customer": UUID("0b5ff65e1ea54a35b1c5a1d9e1e1ab11"),
    }
    wanted = [
        payments.plain.enqueue(7, note="Alice@example.com"),
        payments.pay.enqueue(8, "iban", more=more),
    ]
    payments.plain.enqueue(6, note="bob@example.com")
    assert len(found(text=text)) == 1
    assert found(text=text)[0] in ids_of(wanted)


def test_label_is_found() -> None:
    job = payments.pay.enqueue(4711, "iban")
    payments.plain.enqueue(4711)
    assert found(text="order 4711") == [job.id]
    assert not found(text="order 47118")


def test_hidden_arguments_are_not_found() -> None:
    call = {"password": payments.PASSWORD, "more": payments.MORE}
    failed = payments.pay.enqueue(-1, payments.IBAN, **call)
    drain()
    payments.call_provider.enqueue(payments.TOKEN)
    for secret in (*payments.SECRETS, f"iban={payments.IBAN}", "[withheld]"):
        assert not found(text=secret), secret
        assert not dead_letters.find(text=secret).letters, secret
    assert found(text="EUR") == [failed.id]
    assert [one.job_id for one in dead_letters.find(text="EUR").letters] == [UUID(failed.id)]


def test_compressed_package_is_searched(settings: Any) -> None:
    options = {"OPTIONS": {"COMPRESS": 10}}
    settings.TASKS = {"default": {"BACKEND": "stoker.backend.StokerBackend", **options}}
    job = payments.plain.enqueue(1, note="alice " * 100)
    assert bytes(Job.objects.get().package)[3] & matching.COMPRESSED
    assert found(text="alice") == [job.id]


def test_large_package_is_not_searched() -> None:
    payments.plain.enqueue(1, note="alice" + "x" * matching.LARGEST_BYTES)
    assert not found(text="alice")
    assert len(found(text="payments.plain")) == 1


def test_errors_of_all_attempts_are_found() -> None:
    job = tasks.succeed_at.enqueue(2)
    drain()
    assert Job.objects.get(pk=job.id).status == "SUCCESSFUL"
    assert found(text="ConnectionError: attempt 1") == [job.id]
    assert not found(text="attempt 2")


@pytest.mark.parametrize("digits", [6, 13, 32])
def test_id_that_begins_with_the_text_is_found(digits: int) -> None:
    job = tasks.nothing.enqueue()
    for text in (job.id[:digits], job.id.replace("-", "")[:digits]):
        assert job.id in [str(one.pk) for one in page_of(text=text, state="FAILED").by_id]
    assert not page_of(text="ffffff").by_id


def test_filters_narrow_the_search() -> None:
    now = datetime.now(UTC)
    old_id = job_search.first_id_at(now.timestamp() - 7200)
    Job.objects.create(pk=old_id, task="old", queue="default", package=b"", enqueued_at=now)
    job = tasks.add.using(queue_name="mail").enqueue(1, 2)
    drain()
    node = "alpha"
    Job.objects.filter(pk=job.id).update(worker_id=f"{node}:7f000001.0")
    hour = timedelta(hours=1)
    assert found(task=tasks.add.module_path) == [job.id]
    assert found(queue="mail") == [job.id]
    assert found(since=now - hour) == [job.id]
    assert job.id not in found(until=now - hour)
    assert len(found(until=now - hour)) == 1
    assert found(state="SUCCESSFUL", since=now - hour, node=node, text="add") == [job.id]
    assert not found(state="SUCCESSFUL", until=now - hour)
    assert not found(node="elsewhere")
    assert not found(state="READY", node=node)


def test_task_is_found_by_its_exact_name() -> None:
    """These names are the same for the usual collations of MariaDB and MySQL."""
    names = ("shop.tasks.send", "shop.tasks.Send", "shop.tasks.sénd")
    letters = {name: dead(frail.charge, name) for name in names}
    ready, deferred = {}, {}
    for name, letter in letters.items():
        ready[name] = tasks.nothing.enqueue().id
        deferred[name] = tasks.nothing.using(run_after=60).enqueue().id
        Job.objects.filter(pk__in=[ready[name], deferred[name]]).update(task=name)
        DeadLetter.objects.filter(pk=letter.pk).update(task=name)
    for name in names:
        assert found(task=name) == [deferred[name], ready[name]]
        assert found(task=name, state="READY") == [ready[name]]
        (letter,) = dead_letters.find(task=name).letters
        assert letter.pk == letters[name].pk


def test_running_job_is_found_by_its_node() -> None:
    from stoker.models import Claimed

    job = tasks.nothing.enqueue()
    cluster = Cluster.objects.create(
        pk=uuid4(), name="stoker", host="alpha", pid=1, heartbeat_us=0, started_at=datetime.now(UTC)
    )
    Claimed.objects.create(
        job_id=job.id, lease_id=1, holder=cluster.pk, leased_until_us=9 * 10**15, queue="default",
        rank=0, attempts=1, crashes=0,
    )  # fmt: skip
    for state in ("", "RUNNING"):
        assert found(state=state, node="alpha") == [job.id]
        assert not found(state=state, node="beta")


@pytest.mark.parametrize("state", ["", "READY", "DEFERRED"])
@pytest.mark.parametrize("name", ["READ", "MOST_OPENED"])
def test_search_further_back_finds_each_job_once(
    name: str, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_search if name == "READ" else matching, name, 4)
    later = {} if state != "DEFERRED" else {"run_after": 3600}
    wanted = [payments.plain.using(**later).enqueue(n, note="alice") for n in range(6)]
    for number in range(6):  # the bytes of the package have the word, no argument does
        payments.plain.using(**later, queue_name="alice").enqueue(number)
    seen: list[str] = []
    pages, after = 0, None
    while pages == 0 or after is not None:
        page = page_of(limit=50, after=after, text="alice", state=state)
        seen += [str(job.pk) for job in page.jobs]
        pages, after = pages + 1, page.next
        assert page.is_cut == (after is not None)
    assert sorted(seen) == sorted(one.id for one in wanted)
    assert len(seen) == len(set(seen))
    assert pages >= 3


@pytest.mark.parametrize("limit", [1, 2, 50])
def test_search_of_dead_letters_reads_a_bounded_number_per_page(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.dead_letters.search.READ", 3)
    letters = [dead(frail.charge, f"order {n}", note="alice") for n in range(4)]
    for number in range(4):
        dead(frail.fetch, f"news {number}")
    seen: list[UUID] = []
    page, pages = dead_letters.find(text="note=alice", limit=limit), 1
    while True:
        seen += [one.pk for one in page.letters]
        if page.next is None:
            break
        page = dead_letters.find(text="note=alice", limit=limit, after=page.next)
        pages += 1
    assert seen == [one.pk for one in reversed(letters)]
    assert pages >= 3
