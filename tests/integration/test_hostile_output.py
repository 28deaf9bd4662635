"""Commands show control characters of jobs as escapes, and never write them to the terminal."""

import io
import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.utils import timezone

from stoker import chain, queues, schedules
from stoker.conf import settings_for
from stoker.logs.lines import StoredLine, pack_lines
from stoker.models import Cluster, DeadLetter, LogChunk
from stoker.store.written import DatabaseNow
from stoker.tasks.schedules import every
from stoker.values.text import UNSAFE

from tests.app import tasks
from tests.integration.work import work_off

pytestmark = pytest.mark.django_db(transaction=True)

HOSTILE = "\x1b]0;owned\x07\x1b[2J\u202egnp.exe\x9b31m\x7f\r"
"""Sets the title, clears the screen, reverses the text, changes the colour, overwrites the line."""
SHOWN = "\\x1b]0;owned\\x07\\x1b[2J\\u202egnp.exe"


class TerminalOutput(io.StringIO):
    """Output that allows colours."""

    def isatty(self) -> bool:
        return True


def output_of(*arguments: str) -> str:
    """Run a command in this process. Return what it wrote to both streams."""
    out = TerminalOutput()
    try:
        call_command("stoker", *arguments, stdout=out, stderr=out, no_color=True)
    except SystemExit:
        pass
    except CommandError as error:
        out.write(str(error))
    return out.getvalue()


@pytest.fixture
def ids() -> dict[str, str]:
    """Fill the store with hostile texts, and return ids of what is in it."""
    failed = tasks.fail.using(max_attempts=1).enqueue(HOSTILE)
    echoed = tasks.echo.enqueue(HOSTILE)
    while work_off():
        pass
    waiting = tasks.echo.using(run_after=600, queue_name="q\u202e").enqueue(HOSTILE)
    cancelled = tasks.echo.using(run_after=600).enqueue(1)
    cancelled.cancel(HOSTILE)
    flow = chain(tasks.echo.si(HOSTILE), tasks.nothing.si()).enqueue(name=HOSTILE)
    queues.pause("mail", by=HOSTILE, because=HOSTILE)
    schedules.create(HOSTILE, tasks.echo, every(hours=1, args=[HOSTILE]))
    LogChunk.objects.create(
        job_id=echoed.id,
        attempt=1,
        lines=pack_lines([StoredLine(0, "INFO", HOSTILE, HOSTILE)]),
        keep_until=timezone.now(),
    )
    Cluster.objects.create(
        id=uuid4(),
        name=settings_for().cluster,
        host=HOSTILE,
        pid=7,
        heartbeat_us=DatabaseNow(),
        started_at=timezone.now(),
        info={"queues": [HOSTILE], "workers": []},
    )
    return {
        "failed": failed.id,
        "echoed": echoed.id,
        "waiting": waiting.id,
        "cancelled": cancelled.id,
        "flow": flow.id,
        "letter": str(DeadLetter.objects.get().pk),
    }


def commands(ids: dict[str, str]) -> Iterator[tuple[str, ...]]:
    yield ("info",)
    yield ("monitor", "--once")
    yield ("tasks",)
    yield ("jobs", "list")
    for name in ("failed", "echoed", "waiting", "cancelled"):
        yield ("jobs", "show", ids[name])
        yield ("why", ids[name])
    yield ("jobs", "logs", ids["echoed"])
    yield ("dead", "list")
    yield ("dead", "show", ids["letter"], "--all-tracebacks")
    yield ("dead", "stats")
    yield ("workflows", "list")
    yield ("workflows", "show", ids["flow"])
    yield ("schedules", "list")
    yield ("schedules", "show", HOSTILE)
    yield ("clusters", "list")
    yield ("bulk", "list")
    yield ("pause", HOSTILE)
    yield ("resume", HOSTILE)
    yield ("jobs", "show", HOSTILE)
    yield ("schedules", "show", f"no {HOSTILE}")


def test_hostile_texts_are_shown_as_escapes_by_every_command(ids: dict[str, str]) -> None:
    shown = ""
    for arguments in commands(ids):
        text = output_of(*arguments)
        assert not UNSAFE.search(text), arguments
        shown += text
    for words in (f"ValueError: {SHOWN}", f"INFO {SHOWN}", f"by {SHOWN}", "q\\u202e"):
        assert words in shown


def test_json_of_hostile_texts_keeps_the_texts_without_writing_them_raw(
    ids: dict[str, str],
) -> None:
    for arguments in commands(ids):
        if arguments[0] in ("pause", "resume") or HOSTILE in arguments[-1]:
            continue
        text = output_of(*arguments, "--json")
        assert not UNSAFE.search(text), arguments
        json.loads(text)
    texts: Any = json.loads(output_of("workflows", "list", "--json"))
    assert texts["workflows"][0]["name"] == HOSTILE
