"""Lines of jobs when they cannot be written."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from django.db import DataError, OperationalError

from stoker.conf import read_settings
from stoker.logs import writer as writer_module
from stoker.logs.lines import Chunk
from stoker.logs.writer import BATCH, GROWTH_WRITES, LogWriter
from stoker.models.log_chunk import LogChunkQuerySet
from stoker.signals import event
from stoker.store.engines import LARGE_BYTES

pytestmark = pytest.mark.unit


class Table:
    """Takes rows, or raises the error that a test sets."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.error: Exception | None = None
        self.most_rows = BATCH
        """Maximum number of rows that fit into one statement."""

    def bulk_create(self, rows: list[Any]) -> None:
        if self.error is not None:
            raise self.error
        if len(rows) > self.most_rows:
            raise OperationalError(1153, "Got a packet bigger than 'max_allowed_packet' bytes")
        self.rows += rows


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    table = Table()
    monkeypatch.setattr(LogChunkQuerySet, "bulk_create", table.bulk_create)
    monkeypatch.setattr(writer_module, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(writer_module, "WRITE_SECONDS", 0.0)
    return table


@pytest.fixture
def writer() -> LogWriter:
    return LogWriter(read_settings("default", {"OPTIONS": {"LOGS": {"keep_seconds": 60}}}))


@pytest.fixture
def told() -> Iterator[list[dict[str, Any]]]:
    found: list[dict[str, Any]] = []

    def hear(name: str, facts: dict[str, Any], **_: Any) -> None:
        found.append(facts)

    event.connect(hear)
    yield found
    event.disconnect(hear)


def chunks(count: int) -> list[Chunk]:
    return [(uuid4().bytes, 1, "[]") for _ in range(count)]


def test_chunks_are_written_in_batches(writer: LogWriter, table: Table) -> None:
    writer.add(chunks(BATCH + 1))
    assert writer.is_full
    writer.write()
    assert (len(table.rows), writer.is_full) == (BATCH, False)
    writer.write()
    assert (len(table.rows), writer.is_due) == (BATCH + 1, False)


def test_chunk_waits_until_a_batch_is_full(
    writer: LogWriter, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "WRITE_SECONDS", 1000.0)
    writer.add(chunks(1))
    assert (writer.has_waiting, writer.is_due) == (True, False)
    writer.add(chunks(BATCH))
    assert writer.is_full
    writer.write_all()
    assert (len(table.rows), writer.has_waiting) == (BATCH + 1, False)


def test_last_write_gives_up_if_the_store_is_unreachable(
    writer: LogWriter, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "PAUSE_SECONDS", 1000.0)
    table.error = OperationalError("away")
    writer.add(chunks(2))
    writer.write_all()
    assert writer.has_waiting


def test_chunks_wait_while_the_store_is_away(
    writer: LogWriter, table: Table, told: list[dict[str, Any]]
) -> None:
    table.error = OperationalError("away")
    writer.add(chunks(2))
    writer.write()
    assert told[-1]["error"] is table.error
    table.error = None
    writer.write()
    assert len(table.rows) == 2


def test_failed_write_is_not_due_at_once(
    writer: LogWriter, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "PAUSE_SECONDS", 1000.0)
    table.error = OperationalError("locked")
    writer.add(chunks(BATCH))
    assert writer.is_full
    writer.write()
    assert (writer.is_due, writer.is_full) == (False, False)


def test_refused_chunks_are_dropped(
    writer: LogWriter, table: Table, told: list[dict[str, Any]]
) -> None:
    table.error = DataError("no such character")
    writer.add(chunks(2))
    writer.write()
    assert told[-1]["count"] == 2
    assert not writer.is_due


def test_chunk_that_is_refused_in_ascii_too_is_dropped(
    writer: LogWriter, table: Table, told: list[dict[str, Any]]
) -> None:
    table.error = OperationalError(1366, "Incorrect string value")
    writer.add([(uuid4().bytes, 1, '["\N{FIRE}"]')])
    writer.write()
    assert not told, "it is written again in ASCII"
    writer.write()
    assert (told[-1]["count"], writer.has_waiting) == (1, False)


@pytest.mark.parametrize("most_rows", [1, 100])
def test_batch_that_is_too_large_is_written_in_smaller_ones(
    most_rows: int, writer: LogWriter, table: Table, told: list[dict[str, Any]]
) -> None:
    table.most_rows = most_rows
    sent = chunks(BATCH)
    writer.add(sent)
    writer.write_all()
    assert [row.job_id.bytes for row in table.rows] == [job_id for job_id, *_ in sent]
    assert told[-1]["count"] == 0, "nothing is dropped"
    table.most_rows = BATCH
    for _ in range(BATCH * GROWTH_WRITES):
        writer.add(chunks(1))
        writer.write()
    writer.add(chunks(BATCH))
    writer.write()
    assert not writer.has_waiting, "the batches have grown again"


def test_batch_that_was_too_large_grows_slowly(
    writer: LogWriter, table: Table, told: list[dict[str, Any]]
) -> None:
    """Otherwise every second write would fail if only one chunk fits."""
    table.most_rows = 1
    writer.add(chunks(BATCH))
    writer.write_all()
    told.clear()
    writer.add(chunks(BATCH))
    writer.write_all()
    assert len(told) <= BATCH / GROWTH_WRITES
    assert len(table.rows) == 2 * BATCH


@pytest.mark.parametrize(("code", "size"), [(1153, 1), (2006, LARGE_BYTES), (2013, LARGE_BYTES)])
def test_chunk_that_is_too_large_alone_is_dropped(
    code: int, size: int, writer: LogWriter, table: Table, told: list[dict[str, Any]]
) -> None:
    table.error = OperationalError(code, "too large, or a lost connection")
    writer.add([(uuid4().bytes, 1, "x" * size)])
    writer.write()
    assert writer.has_waiting, "the connection may have been lost for another reason"
    writer.write()
    assert (told[-1]["count"], writer.has_waiting) == (1, False)


@pytest.mark.parametrize("code", [2006, 2013])
def test_small_chunks_wait_until_a_lost_connection_is_back(
    code: int, writer: LogWriter, table: Table, told: list[dict[str, Any]]
) -> None:
    table.error = OperationalError(code, "Lost connection to server")
    writer.add(chunks(3))
    for _ in range(5):
        writer.write()
    assert told[-1]["count"] == 0, "nothing is dropped"
    table.error = None
    writer.write_all()
    assert len(table.rows) == 3


def test_batches_and_backlog_are_bounded_by_characters(
    writer: LogWriter, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "BATCH_CHARACTERS", 3)
    monkeypatch.setattr(writer_module, "MOST_CHARACTERS", 7)
    written = []
    writer.add(chunks(10))
    while writer.is_due:
        writer.write()
        written.append(len(table.rows))
    assert written == [2, 4], "each chunk has two characters, and four fit"
