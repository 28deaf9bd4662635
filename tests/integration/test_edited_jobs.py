"""Waiting jobs with guards get other arguments, or start at another time."""

from uuid import UUID

import pytest

from stoker.conf import settings_for
from stoker.jobs.change import Change, change

from tests.app import frail

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("nothing_broken")]


def test_edit_of_a_job_whose_key_raises_is_refused() -> None:
    jobs = [frail.refund.enqueue(order) for order in ("order 1", "order 2")]
    frail.broken.add("owner of order 1")
    ids = [UUID(job.id) for job in jobs]
    first, second = change(settings_for(), ids, Change(args=["order 3"]))
    assert "owner of order 1 is broken" in first.refusal
    assert "another unique key" in second.refusal
