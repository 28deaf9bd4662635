"""No query parameter and no part of an address makes the API answer 5xx."""

from collections.abc import Callable, Iterable
from random import Random
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from stoker import chain, every, schedules
from stoker.api.urls import api
from stoker.api.values import cursor_of
from stoker.models import DeadLetter
from stoker.testing import drain

from tests import hostile
from tests.api.conftest import PREFIX, Caller
from tests.app import frail, tasks

pytestmark = pytest.mark.django_db(transaction=True)

AWAY = 503
"""The answer of a probe: no cluster runs."""


@pytest.fixture
def parts(transactional_db: None, anna: Caller) -> dict[str, str]:
    """Names of path parameters -> something that there is."""
    frail.broken.add("order 1")
    failed = frail.charge.enqueue("order 1")
    drain()
    frail.broken.clear()
    schedules.create("refresh", tasks.add, every(hours=1, args=[1, 2]))
    letter = DeadLetter.objects.get(job_id=failed.id)
    asked = {"operation": "move-job", "queue": "slow", "all": True}
    moving = anna.post("bulk", asked, status=201)
    return {
        "job_id": failed.id,
        "letter_id": str(letter.pk),
        "queue": "default",
        "schedule": "refresh",
        "cluster_id": str(hostile.ID),
        "workflow_id": chain(tasks.add.si(1, 2)).enqueue().id,
        "bulk_id": moving["id"],
    }


def routes() -> list[tuple[str, list[str], list[str]]]:
    """Return each route of GET: its path, its path parameters and its query parameters."""
    found = []
    for path, methods in api.get_openapi_schema(path_prefix="")["paths"].items():
        if "get" in methods:
            given: list[Any] = methods["get"].get("parameters", [])
            places = [[one["name"] for one in given if one["in"] == i] for i in ("path", "query")]
            found.append((path, places[0], places[1]))
    assert len(found) > 10
    return found


def as_cursors(query: dict[str, str]) -> Iterable[dict[str, str]]:
    """Return the query, and once more with its cursor signed as the API does it."""
    yield query
    if query.get(hostile.CURSOR):
        yield {**query, hostile.CURSOR: str(cursor_of(query[hostile.CURSOR]))}


@pytest.mark.parametrize(
    "queries", [hostile.few_queries, pytest.param(hostile.queries, marks=pytest.mark.slow)]
)
def test_hostile_query_parameters_never_answer_5xx(
    anna: Caller,
    parts: dict[str, str],
    seed: int,
    queries: Callable[..., Iterable[dict[str, str]]],
) -> None:
    random = Random(seed)
    anna.client.raise_request_exception = False
    failures = []
    for path, places, names in routes():
        address = PREFIX + path.lstrip("/").format(**{one: parts[one] for one in places})
        for query in queries(dict.fromkeys(names, ()), random):
            for sent in as_cursors(query):
                response: Any = anna.client.get(f"{address}?{urlencode(sent)}")
                if response.status_code >= 500 and not (
                    "health" in path and response.status_code == AWAY
                ):
                    failures.append((path, str(sent)[:200], response.status_code))
    assert not failures, (len(failures), failures[:20])


def test_hostile_parts_of_addresses_never_answer_5xx(anna: Caller) -> None:
    anna.client.raise_request_exception = False
    for path, places, _ in routes():
        for value in hostile.VALUES if places else ():
            text = path.lstrip("/").format(**dict.fromkeys(places, quote(value[:3000], safe="")))
            response: Any = anna.client.get(PREFIX + text)
            assert response.status_code < 500, (path, value[:100], response.status_code)
