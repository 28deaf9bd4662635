"""Schedules that a real cluster fires."""

from pathlib import Path

import pytest

from stoker import every, schedules
from stoker.models import Tick

from tests.app.tasks import nothing
from tests.cluster.clusters import running_cluster, wait_for

pytestmark = pytest.mark.django_db(transaction=True)


def test_every_second(tmp_path: Path) -> None:
    schedules.create("seconds", nothing, every(seconds=1))
    with running_cluster(tmp_path) as cluster:
        wait_for(lambda: Tick.objects.filter(outcome="fired").count() >= 3, cluster.tail)
    ticks = list(Tick.objects.order_by("moment_us"))
    for tick in ticks:
        late_us = tick.fired_us - tick.moment_us
        assert 0 <= late_us < 1_000_000, ticks
    assert not cluster.complaints()
