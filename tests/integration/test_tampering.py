"""What somebody changes in a broker, or puts there, is not run; and somebody is told. On every
broker outside the database."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from django.test import override_settings

from stoker.brokers.adapters import adapter_for, broker_for
from stoker.brokers.transport import Transport
from stoker.conf import settings_for
from stoker.jobs.package import Package, sealer_for
from stoker.models import DeadLetter, Job
from stoker.values.ids import new_job_id

from tests.app.models import Ledger
from tests.app.tasks import write_ledger
from tests.conformance.stands import Stand, message, stands
from tests.integration.work import work_off

BACKEND = "stoker.backend.StokerBackend"

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True, params=stands(lambda kind: kind.url not in ("", "orm://default")))
def stand(request: pytest.FixtureRequest) -> Iterator[Stand]:
    """Let the queue be on this broker, each in its turn."""
    made: Stand = request.param()
    url, cluster = made.place
    options = {"BROKER": url, "CLUSTER": cluster}
    with override_settings(TASKS={"default": {"BACKEND": BACKEND, "OPTIONS": options}}):
        yield made
        broker_for(settings_for()).close()
    made.clear()


def test_one_that_nobody_changed() -> None:
    """It is found and run: so the others are found as well."""
    job_id = new_job_id()
    put(job_id, sealed(job_id))
    work_off()
    assert Job.objects.get().status == "SUCCESSFUL"
    assert Ledger.objects.count() == 1


def test_one_that_was_tampered_with() -> None:
    job_id = new_job_id()
    package = sealed(job_id)
    middle = len(package) // 2
    put(job_id, package[:middle] + bytes([package[middle] ^ 1]) + package[middle + 1 :])
    is_buried("BadSignature")


def test_one_that_is_signed_with_another_key() -> None:
    job_id = new_job_id()
    with override_settings(SECRET_KEY="another", SECRET_KEY_FALLBACKS=[]):
        package = sealed(job_id)
    put(job_id, package)
    is_buried("BadSignature")


def test_one_that_is_for_another_cluster() -> None:
    job_id = new_job_id()
    put(job_id, sealed(job_id, cluster="other"))
    is_buried("BadSignature")


def test_one_of_another_job() -> None:
    """It is signed well: but whoever can write to the broker must not run jobs again."""
    put(new_job_id(), sealed(new_job_id()))
    is_buried("Unreadable|Signature")


def test_one_that_is_none() -> None:
    put(new_job_id(), b"\0" * 100)
    is_buried("Unreadable|Signature")


def test_the_others_go_on() -> None:
    good = [new_job_id() for _ in range(3)]
    for job_id in good[:2]:
        put(job_id, sealed(job_id))
    put(new_job_id(), b"whatever")
    put(good[2], sealed(good[2]))
    for _ in range(3):
        work_off()
    assert set(Job.objects.filter(status="SUCCESSFUL").values_list("pk", flat=True)) == set(good)
    assert DeadLetter.objects.count() == 1


def put(job_id: UUID, package: bytes) -> None:
    """Let the broker have these bytes for this job."""
    outside = adapter_for(settings_for())
    add = outside.send if isinstance(outside, Transport) else outside.enqueue
    add([message(job_id=job_id, task=write_ledger.module_path, package=package)])
    outside.close()


def sealed(job_id: UUID, **changes: Any) -> bytes:
    settings = replace(settings_for(), **changes)
    package = Package(job_id, write_ledger.module_path, (), {}, "default", 0, time.time())
    return sealer_for(settings).seal(package)


def is_buried(why: str) -> None:
    """A dead letter says why, and nothing was run."""
    for _ in range(3):
        work_off()
    letter = DeadLetter.objects.get()
    assert re.search(why, letter.exception_class), letter.exception_class
    assert letter.message
    assert not Ledger.objects.exists()
    assert Job.objects.get().status == "FAILED"
