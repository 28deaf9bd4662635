"""Packages that were changed or put into a broker by others do not run, and become dead letters."""

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
from tests.conformance.server_stands import stands
from tests.conformance.stands import Stand, message
from tests.integration.work import work_off

BACKEND = "stoker.backend.StokerBackend"

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True, params=stands(lambda kind: kind.url not in ("", "orm://default")))
def stand(request: pytest.FixtureRequest) -> Iterator[Stand]:
    """Use each broker outside the database in turn."""
    made: Stand = request.param()
    url, cluster = made.place
    options = {"BROKER": url, "CLUSTER": cluster}
    with override_settings(TASKS={"default": {"BACKEND": BACKEND, "OPTIONS": options}}):
        yield made
        broker_for(settings_for()).close()
    made.clear()


def test_valid_package_put_by_hand_runs() -> None:
    """The other tests put their packages in the same way."""
    job_id = new_job_id()
    put(job_id, sealed(job_id))
    work_off()
    assert Job.objects.get().status == "SUCCESSFUL"
    assert Ledger.objects.count() == 1


def test_changed_package_becomes_dead_letter() -> None:
    job_id = new_job_id()
    package = sealed(job_id)
    middle = len(package) // 2
    put(job_id, package[:middle] + bytes([package[middle] ^ 1]) + package[middle + 1 :])
    assert_dead_letter("BadSignature")


def test_package_signed_with_another_key_becomes_dead_letter() -> None:
    job_id = new_job_id()
    with override_settings(SECRET_KEY="another", SECRET_KEY_FALLBACKS=[]):
        package = sealed(job_id)
    put(job_id, package)
    assert_dead_letter("BadSignature")


def test_package_for_another_cluster_becomes_dead_letter() -> None:
    job_id = new_job_id()
    put(job_id, sealed(job_id, cluster="other"))
    assert_dead_letter("BadSignature")


def test_package_of_another_job_becomes_dead_letter() -> None:
    """It has a valid signature, but write access to the broker must not allow to run jobs again."""
    put(new_job_id(), sealed(new_job_id()))
    assert_dead_letter("Unreadable|Signature")


def test_unparsable_package_becomes_dead_letter() -> None:
    put(new_job_id(), b"\0" * 100)
    assert_dead_letter("Unreadable|Signature")


def test_invalid_package_does_not_stop_other_jobs() -> None:
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
    """Give the broker these bytes as the package of this job."""
    outside = adapter_for(settings_for())
    add = outside.send if isinstance(outside, Transport) else outside.enqueue
    add([message(job_id=job_id, task=write_ledger.module_path, package=package)])
    outside.close()


def sealed(job_id: UUID, **changes: Any) -> bytes:
    settings = replace(settings_for(), **changes)
    package = Package(job_id, write_ledger.module_path, (), {}, "default", 0, time.time())
    return sealer_for(settings).seal(package)


def assert_dead_letter(why: str) -> None:
    """Check that a dead letter names this error, and that nothing was run."""
    for _ in range(3):
        work_off()
    letter = DeadLetter.objects.get()
    assert re.search(why, letter.exception_class), letter.exception_class
    assert letter.message
    assert not Ledger.objects.exists()
    assert Job.objects.get().status == "FAILED"
