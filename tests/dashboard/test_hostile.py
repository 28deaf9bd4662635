"""No query parameter makes a page of the dashboard answer 5xx."""

import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from django.test import Client

from stoker import chain, dashboard, every, schedules, set_limit
from stoker.inspect.guards import STATES as GUARD_STATES
from stoker.inspect.jobs import STATES
from stoker.models import DeadLetter, GuardKey
from stoker.testing import drain

from tests import hostile
from tests.app import frail, tasks
from tests.dashboard.conftest import PREFIX

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgres]

FILES = [*Path(dashboard.__file__).parent.rglob("*.py")]
KNOWN = {
    "after": (),
    "arguments": ('{"a": 1}',),
    "backend": ("default",),
    "by": ("anna",),
    "fingerprint": ("abc",),
    "format": ("csv", "jsonl"),
    "kind": ("job", "letter"),
    "last": ("hour", "week"),
    "log": ("all",),
    "name": ("default", "tests.app.tasks.add"),
    "node": ("host",),
    "operation": ("pause-queue",),
    "q": ("add", "7"),
    "queue": ("default",),
    "reason": ("error",),
    "since": ("2d",),
    "state": (*STATES, *GUARD_STATES, "unique", "open", "closed", "all"),
    "task": ("tests.app.tasks.add",),
    "until": ("1h",),
}
"""Parameter -> valid values."""
PARAMETERS = {
    "": ("last", "backend"),
    "audit/": ("by", "operation", "q", "since", "until", "after", "backend"),
    "audit/export/": ("format", "by", "operation", "q", "since", "until"),
    "bulk/": ("after", "backend"),
    "bulk/new/": ("kind", "arguments", "state", "q", "task", "queue", "fingerprint", "since"),
    "jobs/": ("state", "queue", "task", "q", "node", "since", "until", "after", "backend"),
    "guards/": ("state", "q", "after", "backend"),
    "queues/": ("last",),
    "queues/one/": ("name", "last"),
    "tasks/": ("last",),
    "tasks/one/": ("name", "last"),
    "dead-letters/": ("fingerprint", "task", "reason", "queue", "state", "q", "after"),
    "schedules/": ("after",),
    "workflows/": ("state", "after"),
    "clusters/": ("backend",),
    "live/": ("backend",),
}
"""Page -> the parameters that it reads."""


@pytest.fixture
def details() -> list[str]:
    """The pages of single things, after there is something on every page."""
    frail.broken.add("order 1")
    failed = frail.charge.enqueue("order 1")
    flow = chain(tasks.add.si(1, 2), tasks.add.si(3, 4)).enqueue()
    drain()
    frail.broken.clear()
    tasks.add.using(run_after=3600).enqueue(1, 2)
    tasks.add.enqueue(1, 2)
    row = schedules.create("refresh", tasks.add, every(hours=1, args=[1, 2]))
    letter = DeadLetter.objects.get(job_id=failed.id)
    set_limit("tenant:7", 3)
    return [
        f"guards/{GuardKey.objects.get().pk}/",
        f"jobs/{failed.id}/",
        f"dead-letters/{letter.pk}/",
        f"schedules/{row.pk}/",
        f"workflows/{flow.id}/",
    ]


@pytest.mark.parametrize(
    "queries", [hostile.few_queries, pytest.param(hostile.queries, marks=pytest.mark.slow)]
)
def test_hostile_query_parameters_never_answer_5xx(
    anna: Client, details: list[str], seed: int, queries: Callable[..., Iterable[dict[str, str]]]
) -> None:
    random = Random(seed)
    failures = []
    for path, names in {**PARAMETERS, **dict.fromkeys(details, ("backend", "log"))}.items():
        for query in queries({name: KNOWN[name] for name in names}, random):
            status = status_of(anna, f"{PREFIX}{path}?{urlencode(query)}")
            if status >= 500:
                failures.append((path, str(query)[:200], status))
    assert not failures, (len(failures), failures[:20])


def test_every_parameter_that_a_page_reads_is_tested() -> None:
    source = "".join(file.read_text() for file in FILES)
    read = set(re.findall(r'(?:GET|given)\.get\("(\w+)"', source))
    assert read <= set(KNOWN), "enter it in KNOWN, and in PARAMETERS for its page"


def test_bytes_that_are_not_utf8_never_answer_5xx(anna: Client) -> None:
    for path, names in PARAMETERS.items():
        for name in names:
            for text in ("%ff", "%ED%A0%80", "%00", "%"):
                assert status_of(anna, f"{PREFIX}{path}?{name}={text}") < 500, (path, name, text)


def test_cursor_of_each_state_is_refused_by_the_lists_of_the_others(anna: Client) -> None:
    marks = [str(hostile.ID), f"7~{hostile.ID}", f"{datetime.now(UTC).isoformat()}~{hostile.ID}"]
    for state in ("", *STATES):
        taken = [
            status_of(anna, f"{PREFIX}jobs/?state={state}&after={quote(mark)}") for mark in marks
        ]
        assert sorted(taken) == [200, 400, 400], (state, taken)


def status_of(client: Client, address: str) -> int:
    """Return the status; 500 for an exception, which Django's test client would raise."""
    client.raise_request_exception = False
    response: Any = client.get(address)
    return int(response.status_code)
