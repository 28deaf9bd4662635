"""The history of operations over HTTP."""

import csv
import io
import json

import pytest

from stoker.models import BulkOperation
from stoker.testing import drain

from tests.api.conftest import Caller
from tests.app import tasks

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _operations(transactional_db: None, anna: Caller) -> None:
    for queue, because in (("mail", "lunch"), ("slow", "=1+1"), ("default", "")):
        anna.post(f"queues/{queue}/pause", {"because": because})
    job = tasks.add.enqueue(1, 2)
    anna.post(f"jobs/{job.id}/cancel", {"because": "ordered twice"})
    drain()


def test_operations_are_listed_by_page(anna: Caller) -> None:
    page = anna.get("audit", limit=3)
    assert [one["operation"] for one in page["operations"]] == ["cancel-job", *["pause-queue"] * 2]
    first = page["operations"][0]
    assert (first["by"], first["because"], first["done"]) == ("anna", "ordered twice", 1)
    page = anna.get("audit", limit=3, after=page["next"])
    assert ([one["target"] for one in page["operations"]], page["next"]) == (["mail"], None)


@pytest.mark.parametrize(
    ("query", "targets"),
    [
        ({"operation": "pause-queue"}, ["default", "slow", "mail"]),
        ({"q": "lunch"}, ["mail"]),
        ({"by": "bert"}, []),
        ({"until": "2020-01-01T00:00:00Z"}, []),
        ({"since": "2020-01-01T00:00:00Z", "q": "slow"}, ["slow"]),
    ],
)
def test_operations_are_filtered(query: dict[str, str], targets: list[str], anna: Caller) -> None:
    assert [one["target"] for one in anna.get("audit", **query)["operations"]] == targets


def test_operations_are_exported_as_csv_and_json_lines(anna: Caller) -> None:
    response = anna.client.get("/stoker/audit/export?operation=pause-queue")
    assert response.headers["Content-Type"] == "text/csv; charset=utf-8"
    assert "attachment" in response.headers["Content-Disposition"]
    rows = [*csv.DictReader(io.StringIO(response.getvalue().decode()))]
    assert [row["target"] for row in rows] == ["default", "slow", "mail"]
    assert rows[1]["because"] == "'=1+1", "no formula for spreadsheets"
    response = anna.client.get("/stoker/audit/export?format=jsonl&q=lunch")
    (line,) = response.getvalue().decode().splitlines()
    assert json.loads(line)["id"] == str(BulkOperation.objects.get(filters__target="mail").pk)


def test_unknown_filters_formats_and_cursors_are_refused(anna: Caller) -> None:
    for query in ("audit/export?format=xml", "audit?after=x", "audit?since=soon"):
        assert anna.call("GET", query).status_code == 422, query
