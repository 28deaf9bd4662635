"""What scripts fetch from an open page: the parts that differ, and nothing else."""

import gzip
import json
import re
from typing import Any

import pytest
from django.test import Client

from stoker.dashboard.pages.jobs import ON_A_PAGE
from stoker.dashboard.views import digest_of, parts_of
from stoker.models import Job
from stoker.testing import drain

from tests.app import tasks
from tests.dashboard.conftest import PREFIX

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgres]


def live(client: Client, path: str, known: dict[str, str] | None = None, first: str = "") -> Any:
    """Return the answer to a script that has parts with these digests."""
    digests = ",".join(f"{name}={digest}" for name, digest in (known or {}).items()) or "-"
    headers = {"X-Stoker-Live": digests, **({"X-Stoker-First": first} if first else {})}
    response = client.get(PREFIX + path, headers=headers)
    assert response.status_code == 200
    assert int(response.headers["Content-Length"]) == len(response.content)
    return response.json()


def digests_of(answer: Any) -> dict[str, str]:
    return {name: part[0] for name, part in answer["parts"].items()}


def test_script_gets_only_the_parts_that_differ(anna: Client) -> None:
    tasks.add.enqueue(1, 2)
    path = "jobs/"
    first = live(anna, path)
    assert set(first["parts"]) == {"states", "outage", "found"}
    assert all(len(part) == 2 for part in first["parts"].values())
    known = digests_of(first)
    again = live(anna, path, known)
    assert again["parts"] == {name: [digest] for name, digest in known.items()}
    Job.objects.update(priority=7)  # in the rows, and not in the numbers above them
    changed = live(anna, path, known)
    assert [len(changed["parts"][name]) for name in ("states", "found")] == [1, 2]


@pytest.mark.parametrize("path", ["", "jobs/", "queues/", "tasks/", "dead-letters/", "clusters/"])
def test_all_live_parts_of_a_page_are_found_whole(path: str, anna: Client) -> None:
    tasks.add.enqueue(1, 2)
    drain()
    page = anna.get(PREFIX + path).content.decode()
    parts = parts_of(page)
    assert len(parts) == page.count(" data-live")
    for name, part in parts.items():
        opened = re.findall(r"<(section|div|ul|dl)\b", part)
        closed = re.findall(r"</(section|div|ul|dl)>", part)
        assert sorted(opened) == sorted(closed), name


def test_passing_time_and_csrf_tokens_change_no_digest() -> None:
    token = '<input type="hidden" name="csrfmiddlewaretoken" value="{}">'
    time = '<time datetime="2030-01-31" title="then">{} ago</time>'
    one, other = (token.format(a) + time.format(b) for a, b in (("x", "2 s"), ("y", "3 s")))
    assert digest_of(one) == digest_of(other)
    assert digest_of(one) != digest_of(one + "!")


def test_answer_is_compressed_if_the_script_takes_that(anna: Client) -> None:
    tasks.add.enqueue_many([((1, 2), {})] * 50)
    headers = {"X-Stoker-Live": "-", "Accept-Encoding": "gzip, br"}
    response = anna.get(f"{PREFIX}jobs/", headers=headers)
    assert response.headers["Content-Encoding"] == "gzip"
    body = gzip.decompress(response.content)
    assert len(json.loads(body)["parts"]) == 3
    assert len(response.content) < len(body) / 5


@pytest.mark.parametrize("state", ["", "successful"])
def test_rows_stay_and_newer_ones_are_counted(state: str, anna: Client) -> None:
    def enqueue(count: int) -> list[str]:
        ids = [tasks.add.enqueue(1, 2).id for _ in range(count)]
        if state:
            drain()
        return ids

    path = f"jobs/?state={state}"
    shown = enqueue(60)
    rows = [str(row.job.pk) for row in anna.get(PREFIX + path).context["rows"]]
    assert len(rows) == ON_A_PAGE
    for more, new in ((3, 3), (120, 100)):
        shown += enqueue(more)
        answer = live(anna, path, first=rows[0])
        assert answer["new"] == new
        found = re.findall(r'<tr data-key="([^"]+)"', answer["parts"]["found"][1])
        assert found == rows


def test_newer_rows_are_not_counted_without_an_index(anna: Client) -> None:
    job = tasks.add.enqueue(1, 2)
    for path in ("jobs/?q=add", "jobs/?queue=default", "jobs/?state=deferred", "dead-letters/"):
        assert live(anna, path, first=job.id)["new"] is None, path
    assert live(anna, "jobs/", first="odd")["new"] is None
    assert live(anna, "jobs/", first="01a1ffdb-f411-7482-86ed-55b43acb2507")["new"] is None


def test_refused_page_is_sent_without_parts(anna: Client) -> None:
    response = anna.get(f"{PREFIX}jobs/?after=odd", headers={"X-Stoker-Live": "-"})
    assert (response.status_code, response.json()["parts"]) == (400, {})
