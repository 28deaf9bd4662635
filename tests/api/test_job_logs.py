"""Lines of jobs over HTTP."""

import uuid
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from stoker.logs.lines import StoredLine, pack_lines
from stoker.models import LogChunk
from stoker.testing import drain

from tests.api.conftest import Caller
from tests.app.tasks import add

pytestmark = pytest.mark.django_db(transaction=True)


def store(job_id: str, *texts: str) -> None:
    lines = [StoredLine(1500, "INFO", "shop", text) for text in texts]
    LogChunk.objects.create(
        job_id=job_id, attempt=1, lines=pack_lines(lines), keep_until=datetime.now(UTC)
    )


def test_new_lines_follow_on_later_pages_while_the_job_runs(who_may: Callable[..., Caller]) -> None:
    caller, job_id = who_may("view_logchunk"), add.enqueue(1, 2).id
    path = f"jobs/{job_id}/logs"
    nothing = {"lines": [], "next": None, "has_more": False, "is_over": False}
    assert caller.get(path) == nothing
    store(job_id, "one", "\x1btwo", "three")
    first = caller.get(path, limit=2)
    assert first["lines"][1] == {
        "at": "1970-01-01T00:00:01.500Z",
        "attempt": 1,
        "level": "INFO",
        "source": "shop",
        "text": "\\x1btwo",
    }
    assert (first["has_more"], first["is_over"]) == (True, False)
    second = caller.get(path, after=first["next"])
    assert [line["text"] for line in second["lines"]] == ["three"]
    drain()
    third = caller.get(path, after=second["next"])
    assert third == {"lines": [], "next": second["next"], "has_more": False, "is_over": True}


def test_unknown_jobs_and_foreign_cursors_are_refused(anna: Caller) -> None:
    assert anna.call("GET", f"jobs/{uuid.uuid4()}/logs").status_code == 404
    job_id = add.enqueue(1, 2).id
    add.enqueue(1, 2)
    after = anna.get("jobs", limit=1)["next"]
    assert anna.call("GET", f"jobs/{job_id}/logs?after={after}").status_code == 422
    assert anna.call("GET", f"jobs/{job_id}/logs?after=x").status_code == 422
    assert anna.call("GET", f"jobs/{job_id}/logs?limit=0").status_code == 422
