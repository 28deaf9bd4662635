"""No query parameter and no field of a form makes a page of the admin answer 5xx."""

import re
from collections.abc import Callable, Iterable
from random import Random
from urllib.parse import quote, urlencode

import pytest

from stoker import every, queues, schedules
from stoker.inspect.jobs import STATES
from stoker.models import DeadLetter
from stoker.testing import drain
from stoker.values.text import UNSAFE

from tests import hostile
from tests.admin.conftest import Visitor
from tests.admin.test_redaction import fields_of
from tests.app import frail, tasks

KNOWN = {
    "after": (),
    "backend": ("default",),
    "fingerprint": ("abc",),
    "key": ("feed",),
    "name": ("refresh",),
    "part": ("1",),
    "q": ("add", "key:feed:7"),
    "queue": ("default",),
    "reason": ("error",),
    "state": (*STATES, "open", "all"),
    "task": ("tests.app.tasks.add",),
    "text": ("broken",),
}
"""Parameter -> valid values."""
PARAMETERS = {
    "job/": ("state", "queue", "task", "q", "after", "backend"),
    "deadletter/": ("state", "task", "queue", "reason", "fingerprint", "key", "text", "after"),
    "deadletter/faults/": ("state", "backend"),
    "schedule/": ("q", "after"),
    "schedule/preview/": ("name", "backend"),
    "pausedqueue/": ("backend",),
    "cluster/": ("backend",),
}
"""Page -> the parameters that it reads."""


@pytest.fixture
def pages(anna: Visitor) -> dict[str, set[str]]:
    """Return page -> the parameters that it reads, after there is something on every page."""
    frail.broken.add("order 1")
    failed = frail.charge.enqueue("order 1")
    drain()
    frail.broken.clear()
    waiting = tasks.add.enqueue(1, 2)
    schedules.create("refresh", tasks.add, every(hours=1, args=[1, 2]))
    letter = DeadLetter.objects.get(job_id=failed.id)
    details = (
        f"job/{waiting.id}/change/",
        f"job/{waiting.id}/cancel/",
        f"deadletter/{letter.pk}/change/",
        f"deadletter/{letter.pk}/edit/",
        f"deadletter/{letter.pk}/discard/",
        "pausedqueue/default/clear/",
        "schedule/add/",
        "schedule/refresh/change/",
        "schedule/refresh/edit/",
        "schedule/refresh/delete/",
    )
    found = {**PARAMETERS, f"job/{waiting.id}/why/": ("part",), **dict.fromkeys(details, ())}
    return {path: {"backend", *names} for path, names in found.items()}


@pytest.mark.parametrize(
    "queries", [hostile.few_queries, pytest.param(hostile.queries, marks=pytest.mark.slow)]
)
def test_hostile_query_parameters_never_answer_5xx(
    anna: Visitor,
    pages: dict[str, set[str]],
    seed: int,
    queries: Callable[..., Iterable[dict[str, str]]],
) -> None:
    random = Random(seed)
    anna.client.raise_request_exception = False
    failures = []
    for path, names in pages.items():
        assert anna.client.get(f"/admin/stoker/{path}").status_code == 200, path
        for query in queries({name: KNOWN[name] for name in sorted(names)}, random):
            response = anna.client.get(f"/admin/stoker/{path}?{urlencode(query)}")
            if response.status_code >= 500:
                failures.append((path, str(query)[:200], response.status_code))
    assert not failures, (len(failures), failures[:20])


def test_every_parameter_that_a_page_reads_is_tested(
    anna: Visitor, pages: dict[str, set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    noted, missing = hostile.noted_parameters(monkeypatch), {}
    for path, names in pages.items():
        anna.get(path)
        if new := noted() - names:
            missing[path] = new
    assert not missing, "enter them in KNOWN, and in PARAMETERS for their page"


RULE = {
    "name": "new", "task": "tests.app.tasks.add", "kind": "once", "count": "1", "unit": "hours",
    "expression": "", "at": "2030-01-31 06:00", "tz": "UTC", "args": "[1, 2]", "kwargs": "",
    "queue_name": "", "priority": "", "start": "", "end": "", "repeats": "-1", "misfire": "once",
    "overlap": "allow",
}  # fmt: skip


@pytest.mark.parametrize("count", [1, pytest.param(len(hostile.VALUES), marks=pytest.mark.slow)])
def test_hostile_fields_of_forms_never_answer_5xx(
    anna: Visitor, pages: dict[str, set[str]], seed: int, count: int
) -> None:
    random, chosen = Random(seed), {"verb": "hold", "ids": "", "all": "1", "confirmed": "1"}
    forms = {
        "schedule/add/": RULE,
        "schedule/preview/": RULE,
        "schedule/refresh/edit/": RULE,
        "job/together/": chosen,
        "deadletter/together/": {**chosen, "verb": "requeue", "filter-text": ""},
        **{
            path: {"args": "[1]", "kwargs": "{}", "queue": "default"}
            for path in pages
            if path.startswith("deadletter/") and path.endswith("/edit/")
        },
    }
    asking = ("/cancel/", "/clear/", "/delete/", "/discard/")
    forms |= {path: {"because": ""} for path in pages if path.endswith(asking)}
    anna.client.raise_request_exception = False
    failures = []
    for path, fields in forms.items():
        for name in (*fields, "because", "backend"):
            for value in random.sample(hostile.VALUES, count):
                sent = {**fields, name: value}
                status = anna.client.post(f"/admin/stoker/{path}", sent).status_code
                if status >= 500:
                    failures.append((path, name, value[:100], status))
    assert not failures, (len(failures), failures[:20])


def test_marks_in_texts_of_jobs_are_shown_as_escapes(anna: Visitor) -> None:
    """Forms, too, show escapes, and their values stay the same when they are submitted."""
    text = "gp\u202eexe\x1b"
    queues.pause(text, because=text)
    failed = tasks.fail.using(max_attempts=1).enqueue(text)
    drain()
    letter = DeadLetter.objects.get(job_id=failed.id)
    schedules.create(text, tasks.echo, every(hours=1, args=[text]))
    for path in (
        "job/",
        f"job/{failed.id}/change/",
        "deadletter/",
        f"deadletter/{letter.pk}/change/",
        f"deadletter/{letter.pk}/edit/",
        "pausedqueue/",
        "schedule/",
        f"schedule/{quote(text)}/change/",
        f"schedule/{quote(text)}/edit/",
    ):
        page = anna.get(path)
        assert "gp\\u202eexe\\" in page, path
        assert not UNSAFE.search(re.sub(r"<[^>]*>", "", page)), path
    address = f"schedule/{quote(text)}/edit/"
    fields = {**fields_of(anna.get(address)), "task": "tests.app.tasks.echo", "kind": "interval"}
    fields |= {"count": "2", "unit": "hours", "tz": "UTC", "misfire": "once", "overlap": "allow"}
    anna.post(address, **fields, repeats="-1")
    changed = schedules.scheduled(text)
    assert (changed.args, changed.count) == ((text,), 2)  # type: ignore[union-attr]


def test_names_with_line_feeds_have_pages(anna: Visitor) -> None:
    name = "a\nb/c\r"
    tasks.nothing.using(queue_name=name).enqueue()
    schedules.create(name, tasks.nothing, every(hours=1))
    for path in ("pausedqueue/", "schedule/"):
        assert quote(name) in anna.get(path)
    assert "is paused" in anna.post(f"pausedqueue/{quote(name)}/pause/")
    assert queues.get(name).paused is not None
    anna.get(f"schedule/{quote(name)}/change/")
    anna.get(f"schedule/{quote(name)}/edit/")
    anna.post(f"schedule/{quote(name)}/delete/")
    assert not schedules.find().exists()
