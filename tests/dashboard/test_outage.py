"""Pages while the broker outside the database cannot be reached."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from stoker import Lock
from stoker.models import Job

from tests.app import tasks
from tests.dashboard.conftest import PREFIX

pytestmark = [pytest.mark.redis, pytest.mark.django_db(transaction=True)]

URL = "redis://127.0.0.1:1/0"


@pytest.fixture
def job_id(settings: Any) -> str:
    """Return a job that waits in the store, because of its lock."""
    options = {"BROKER": URL}
    settings.TASKS = {"default": {"BACKEND": "stoker.backend.StokerBackend", "OPTIONS": options}}
    return tasks.add.using(lock=Lock("one")).enqueue(1, 2).id


@pytest.mark.parametrize("path", ["", "jobs/", "queues/"])
def test_pages_show_what_the_database_knows(path: str, job_id: str, anna: Client) -> None:
    response = anna.get(f"{PREFIX}{path}")
    assert response.status_code == 200
    page = response.content.decode()
    assert f"The broker does not answer: {URL} cannot be reached: " in page
    assert "jobs that only the broker has are not shown" in page


def test_pages_that_do_not_need_the_broker_say_nothing_of_it(job_id: str, anna: Client) -> None:
    for path in (f"jobs/{job_id}/", "dead-letters/"):
        response = anna.get(f"{PREFIX}{path}")
        assert (response.status_code, b"does not answer" in response.content) == (200, False)


def test_clearing_a_queue_is_refused(job_id: str, anna: Client) -> None:
    response = anna.post(f"{PREFIX}queues/clear/", {"queue": "default", "because": "old"})
    assert response.status_code == 503
    assert Job.objects.get().status is None
