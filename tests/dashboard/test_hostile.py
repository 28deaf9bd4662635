"""No query parameter and no field of a form makes a page of the dashboard answer 5xx."""

import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from random import Random
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from django.test import Client
from django.urls import resolve

from stoker import chain, every, queues, schedules, set_limit
from stoker.conf import settings_for
from stoker.dashboard.urls import FOLDERS, urlpatterns
from stoker.inspect.guards import STATES as GUARD_STATES
from stoker.inspect.jobs import STATES
from stoker.inspect.steps import SHOWN as STEP_STATES
from stoker.models import Cluster, DeadLetter, GuardKey, Step
from stoker.operations import bulk, waiting_jobs
from stoker.operations.dead_letters import PURGE
from stoker.operations.operation import Operator
from stoker.operations.schedules import ADD, CHANGE
from stoker.operations.store import REPAIR
from stoker.operations.table import OPERATIONS
from stoker.testing import drain
from stoker.values.text import UNSAFE

from tests import hostile
from tests.app import frail, tasks
from tests.dashboard.conftest import PREFIX, running_job
from tests.hostile import VALUES

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgres]

KNOWN = {
    "after": (),
    "arguments": ('{"a": 1}',),
    "backend": ("default",),
    "by": ("anna",),
    "key": ("feed:7",),
    "errors": ("all",),
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
    "state": (*STATES, *GUARD_STATES, *STEP_STATES, "unique", "open", "closed", "all"),
    "task": ("tests.app.tasks.add",),
    "until": ("1h",),
    "workflow": (str(hostile.ID),),
}
"""Parameter -> valid values."""
SEARCH = (
    "state",
    "q",
    "task",
    "queue",
    "node",
    "fingerprint",
    "reason",
    "since",
    "until",
    "workflow",
)
PARAMETERS = {
    "": ("last", "name"),
    "audit/": ("by", "operation", "q", "since", "until", "after"),
    "audit/export/": ("format", "by", "operation", "q", "since", "until"),
    "bulk/": ("after",),
    "bulk/new/": ("kind", "arguments", *SEARCH, "key"),
    "jobs/": (*SEARCH, "after", "last", "name"),
    "guards/": ("state", "q", "after"),
    "queues/": ("last", "name", "after"),
    "queues/one/": ("name", "last"),
    "tasks/": ("last", "name", "after"),
    "tasks/one/": ("name", "last"),
    "dead-letters/": (*SEARCH, "key", "after", "last", "name"),
    "schedules/": ("q", "after"),
    "workflows/": ("state", "q", "after"),
    "clusters/": ("after",),
    "live/": (),
    "palette/": ("q",),
}
"""Page -> the parameters that it reads."""


@pytest.fixture
def things(transactional_db: None) -> dict[str, str]:
    """Make something for every page. Return kind of thing -> its id or name."""
    frail.broken.add("order 1")
    failed = frail.charge.enqueue("order 1")
    flow = chain(tasks.add.si(1, 2), tasks.add.si(3, 4)).enqueue()
    drain()
    frail.broken.clear()
    tasks.add.using(run_after=3600).enqueue(1, 2)
    waiting = tasks.add.enqueue(1, 2)
    row = schedules.create("refresh", tasks.add, every(hours=1, args=[1, 2]))
    set_limit("tenant:7", 3)
    operator = Operator(settings_for(), "anna")
    done = bulk.perform(operator, waiting_jobs.HOLD, {"ids": [waiting.id, failed.id]})
    running_job()
    return {
        "bulk": str(done.value.pk),
        "cluster": str(Cluster.objects.get().pk),
        "failed": failed.id,
        "guard": str(GuardKey.objects.get().pk),
        "job": waiting.id,
        "letter": str(DeadLetter.objects.get(job_id=failed.id).pk),
        "queue": "default",
        "schedule": "refresh",
        "schedule_id": str(row.pk),
        "step": str(Step.objects.filter(job_id__isnull=False).values_list("job_id")[0][0]),
        "workflow": flow.id,
    }


@pytest.fixture
def pages(things: dict[str, str]) -> dict[str, set[str]]:
    """Return page -> the parameters that it reads, also of the pages of single things."""
    details = (
        f"bulk/{things['bulk']}/",
        f"jobs/{things['job']}/edit/",
        f"dead-letters/{things['letter']}/",
        f"dead-letters/{things['letter']}/edit/",
        f"guards/{things['guard']}/",
        f"schedules/{things['schedule_id']}/",
        f"schedules/{things['schedule_id']}/edit/",
        "schedules/add/",
    )
    found = {
        **PARAMETERS,
        **dict.fromkeys(details, ()),
        f"jobs/{things['failed']}/": ("log", "errors"),
        f"dead-letters/{things['letter']}/": ("errors",),
        f"workflows/{things['workflow']}/": ("state", "after"),
    }
    return {path: {"backend", *names} for path, names in found.items()}


@pytest.mark.parametrize(
    "queries", [hostile.few_queries, pytest.param(hostile.queries, marks=pytest.mark.slow)]
)
def test_hostile_query_parameters_never_answer_5xx(
    anna: Client,
    pages: dict[str, set[str]],
    seed: int,
    queries: Callable[..., Iterable[dict[str, str]]],
) -> None:
    random = Random(seed)
    failures = []
    for path, names in pages.items():
        for query in queries({name: KNOWN[name] for name in sorted(names)}, random):
            status = status_of(anna, f"{PREFIX}{path}?{urlencode(query)}")
            if status >= 500:
                failures.append((path, str(query)[:200], status))
    assert not failures, (len(failures), failures[:20])


def test_every_page_is_tested(pages: dict[str, set[str]]) -> None:
    tested = {resolve(PREFIX + path).url_name for path in pages}
    others = {"asset", "start-bulk", *OPERATIONS} - tested
    assert {one.name for one in urlpatterns} - others == tested, "enter it in PARAMETERS"


def test_every_parameter_that_a_page_reads_is_tested(
    anna: Client, pages: dict[str, set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    noted, missing = hostile.noted_parameters(monkeypatch), {}
    for path, names in pages.items():
        anna.get(PREFIX + path)
        if new := noted() - names:
            missing[path] = new
    assert not missing, "enter them in KNOWN, and in PARAMETERS for their page"


@pytest.mark.parametrize("count", [1, pytest.param(len(VALUES), marks=pytest.mark.slow)])
def test_hostile_fields_of_forms_never_answer_5xx(
    anna: Client, things: dict[str, str], seed: int, count: int
) -> None:
    random = Random(seed)
    forms = {
        f"{FOLDERS[one.target]}/{one.word}/": {**dict.fromkeys(one.takes, ""), one.target: ""}
        for one in OPERATIONS.values()
        if one not in (ADD, CHANGE, PURGE, REPAIR)
    }
    rule = {
        "name": "new", "task": "tests.app.tasks.add", "kind": "interval", "count": "1",
        "unit": "hours", "expression": "", "at": "", "tz": "UTC", "args": "[1, 2]", "kwargs": "",
        "queue_name": "", "priority": "", "start": "", "end": "", "repeats": "-1",
        "misfire": "once", "overlap": "allow",
    }  # fmt: skip
    forms |= {
        "schedules/add/": rule,
        f"schedules/{things['schedule_id']}/edit/": rule,
        "bulk/start/": dict.fromkeys(("operation", "q", "state", "since", "to", "arguments"), ""),
        f"jobs/{things['job']}/edit/": {"args": "[1, 2]", "kwargs": "{}"},
        f"dead-letters/{things['letter']}/edit/": {"args": "[1, 2]", "kwargs": "{}"},
    }
    failures = []
    for path, fields in forms.items():
        valid = {name: things.get(name, text) for name, text in fields.items()}
        for name in (*fields, "because", "back"):
            for value in random.sample(VALUES, count):
                sent = {**valid, "operation": "hold-job", name: value}
                status = status_of(anna, PREFIX + path, sent)
                if status >= 500:
                    failures.append((path, name, value[:100], status))
    assert not failures, (len(failures), failures[:20])


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


def status_of(client: Client, address: str, fields: dict[str, str] | None = None) -> int:
    """Get a page, or post the fields of a form. Return the status; 500 for an exception, which
    Django's test client would raise."""
    client.raise_request_exception = False
    response: Any = client.get(address) if fields is None else client.post(address, fields)
    return int(response.status_code)


def test_marks_in_texts_of_jobs_are_shown_as_escapes(anna: Client) -> None:
    """Values of form fields keep them, so that forms name the same queue."""
    text = "gp\u202eexe\x1b"
    queues.pause(text, because=text)
    failed = tasks.fail.using(max_attempts=1, queue_name=f"q{text}").enqueue(text)
    drain()
    letter = DeadLetter.objects.get(job_id=failed.id)
    for path in (f"jobs/{failed.id}/", f"dead-letters/{letter.pk}/", "queues/", "dead-letters/"):
        page = anna.get(PREFIX + path).content.decode()
        assert "gp\\u202eexe\\x1b" in page, path
        assert not UNSAFE.search(re.sub(r"<[^>]*>", "", page)), path
    anna.post(f"{PREFIX}queues/resume/", {"queue": text})
    assert all(one.paused is None for one in queues.list())
