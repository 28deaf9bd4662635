"""A project with the dashboard, and its users."""

from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client, override_settings
from django.utils import timezone

from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import ClaimRequest
from stoker.conf import settings_for
from stoker.dashboard import figures
from stoker.models import Cluster
from stoker.store.written import DatabaseNow

from tests.app import tasks
from tests.dashboard.project import SETTINGS

PREFIX = "/stoker/"


@pytest.fixture(autouse=True, scope="package")
def _project() -> Iterator[None]:
    """Use the same settings in all tests: after each change Django reads URLs and templates
    again."""
    with override_settings(**SETTINGS):
        yield


@pytest.fixture(autouse=True)
def _has_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    figures.forget()
    # A busy machine may need more than a moment for a few targets.
    monkeypatch.setattr("stoker.operations.bulk.AT_ONCE_SECONDS", 600.0)


@pytest.fixture
def anna(db: None) -> Client:
    """Give a client of a superuser."""
    return signed_in(User.objects.create_superuser("anna"))


@pytest.fixture
def who_may(db: None) -> Callable[..., Client]:
    """Make clients of users with exactly the given permissions."""

    def make(*permissions: str) -> Client:
        user = User.objects.create_user(f"user {User.objects.count()}")
        names = [name.removeprefix("stoker.") for name in permissions]
        found = Permission.objects.filter(content_type__app_label="stoker", codename__in=names)
        assert found.count() == len(names), permissions
        user.user_permissions.set(found)
        return signed_in(user)

    return make


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def running_job() -> str:
    """Create a job that runs according to its cluster's last heartbeat."""
    cluster_id, job = uuid4(), tasks.add.using(queue_name="busy").enqueue(1, 2)
    broker_for(settings_for()).claim(
        ClaimRequest(1, holder=cluster_id, lease_seconds=600, queues=["busy"])
    )
    running = [{"job": job.id, "seconds": 1.0}]
    Cluster.objects.create(
        id=cluster_id,
        name=settings_for().cluster,
        host="one",
        pid=7,
        heartbeat_us=DatabaseNow(),
        started_at=timezone.now(),
        info={"workers": [{"number": 0, "pid": 8, "jobs_done": 3, "running": running}]},
    )
    return job.id
