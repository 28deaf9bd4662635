"""No query parameter makes a page of the admin answer 5xx."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from urllib.parse import urlencode

import pytest

from stoker import admin, every, schedules
from stoker.inspect.jobs import STATES
from stoker.models import DeadLetter
from stoker.testing import drain

from tests import hostile
from tests.admin.conftest import Visitor
from tests.app import frail, tasks

FILES = [*Path(admin.__file__).parent.rglob("*.py")]
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
def details(anna: Visitor) -> list[str]:
    """The pages of single things, after there is something on every page."""
    frail.broken.add("order 1")
    failed = frail.charge.enqueue("order 1")
    drain()
    frail.broken.clear()
    waiting = tasks.add.enqueue(1, 2)
    schedules.create("refresh", tasks.add, every(hours=1, args=[1, 2]))
    letter = DeadLetter.objects.get(job_id=failed.id)
    return [
        f"job/{waiting.id}/change/",
        f"job/{waiting.id}/why/",
        f"deadletter/{letter.pk}/change/",
        f"deadletter/{letter.pk}/edit/",
        "schedule/refresh/change/",
        "schedule/refresh/edit/",
    ]


@pytest.mark.parametrize(
    "queries", [hostile.few_queries, pytest.param(hostile.queries, marks=pytest.mark.slow)]
)
def test_hostile_query_parameters_never_answer_5xx(
    anna: Visitor, details: list[str], seed: int, queries: Callable[..., Iterable[dict[str, str]]]
) -> None:
    random = Random(seed)
    anna.client.raise_request_exception = False
    failures = []
    for path, names in {**PARAMETERS, **dict.fromkeys(details, ("backend", "part"))}.items():
        assert anna.client.get(f"/admin/stoker/{path}").status_code == 200, path
        for query in queries({name: KNOWN[name] for name in names}, random):
            response = anna.client.get(f"/admin/stoker/{path}?{urlencode(query)}")
            if response.status_code >= 500:
                failures.append((path, str(query)[:200], response.status_code))
    assert not failures, (len(failures), failures[:20])


def test_every_parameter_that_a_page_reads_is_tested() -> None:
    source = "".join(file.read_text() for file in FILES)
    assert set(re.findall(r'(?:GET|given)\.get\("(\w+)"', source)) <= set(KNOWN)
