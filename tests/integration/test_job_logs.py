"""Lines of jobs in the store: pages, and how they are deleted."""

from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from django.utils import timezone

from stoker.conf import read_settings, settings_for
from stoker.jobs.pruning import Pruning
from stoker.locks.sweep import Leftovers
from stoker.logs.lines import StoredLine, has_ended, log_page, pack_lines
from stoker.models import Job, LogChunk
from stoker.testing import drain

from tests.app.tasks import add

pytestmark = pytest.mark.django_db(transaction=True)


def store(job_id: UUID, *sizes: int, days: float = 1) -> None:
    """Store chunks with the given numbers of lines: numbers from 0 on."""
    number = 0
    for size in sizes:
        lines = [StoredLine(1000 * n, "INFO", "shop", str(n)) for n in range(number, number + size)]
        number += size
        LogChunk.objects.create(
            job_id=job_id,
            attempt=1,
            lines=pack_lines(lines),
            keep_until=timezone.now() + timedelta(days=days),
        )


def test_pages_continue_where_the_one_before_ended() -> None:
    job_id, other = uuid4(), uuid4()
    store(job_id, 3, 2)
    store(other, 1)
    store(job_id, *[1] * 45)
    seen, after = [], ""
    while True:
        page = log_page(settings_for(), job_id, after, 4)
        seen.append([line.text for line in page.lines])
        after = page.next
        if not page.has_more:
            break
    assert [len(texts) for texts in seen] == [4] * 12 + [2]
    texts = [text for texts in seen for text in texts]
    assert texts == [*map(str, range(5)), *map(str, range(45))]
    empty = log_page(settings_for(), job_id, after)
    assert (list(empty.lines), empty.next, empty.has_more) == ([], after, False)
    store(job_id, 1)
    assert [line.text for line in log_page(settings_for(), job_id, after).lines] == ["0"]


def test_page_after_a_line_begins_with_the_next_line() -> None:
    job_id = uuid4()
    store(job_id, 3)
    lines = log_page(settings_for(), job_id).lines
    assert lines[1].at.timestamp() == 1
    assert log_page(settings_for(), job_id, lines[1].mark).lines == [lines[2]]
    with pytest.raises(ValueError, match="is not the mark of a page"):
        log_page(settings_for(), job_id, "no mark")


def test_shown_lines_have_no_control_characters() -> None:
    job_id = uuid4()
    lines = [StoredLine(0, "INFO", "shop\x1b", "\x1b[2J\u202etxt")]
    LogChunk.objects.create(
        job_id=job_id, attempt=1, lines=pack_lines(lines), keep_until=timezone.now()
    )
    (line,) = log_page(settings_for(), job_id).lines
    assert (line.source, line.text) == ("shop\\x1b", "\\x1b[2J\\u202etxt")


def test_lines_are_deleted_when_their_time_is_over() -> None:
    old, new = uuid4(), uuid4()
    store(old, 1, 1, days=-1)
    store(new, 1)
    leftovers = Leftovers("default", lambda: None)
    assert leftovers.forget_logs(often=True) == 2
    assert [one.job_id for one in LogChunk.objects.all()] == [new]
    store(old, 1, days=-1)
    assert leftovers.forget_logs(often=True) == 0, "not again so soon"


def test_lines_are_deleted_with_their_job() -> None:
    result, kept = add.enqueue(1, 2), uuid4()
    drain()
    store(UUID(result.id), 2)
    store(kept, 1)
    options = {"LOGS": {}, "KEEP_RESULTS": {"successful_seconds": 1}}
    Job.objects.update(finished_at=timezone.now() - timedelta(days=1))
    settings = read_settings("default", {"QUEUES": [], "OPTIONS": options})
    assert Pruning(settings, lambda: None).prune() == 1
    assert [one.job_id for one in LogChunk.objects.all()] == [kept]


def test_has_ended_is_true_for_ended_and_unknown_jobs() -> None:
    result = add.enqueue(1, 2)
    assert not has_ended(settings_for(), UUID(result.id))
    drain()
    assert has_ended(settings_for(), UUID(result.id))
    assert has_ended(settings_for(), uuid4()), "it is not known any more"
