"""Charts: axes, dots, marks of deploys, and the period that a chart opens."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from stoker.conf import settings_for
from stoker.dashboard import figures
from stoker.dashboard.axes import TimeAxis, duration_axis, jobs_axis
from stoker.dashboard.charts import backlog_chart, latency_chart, throughput_chart
from stoker.dashboard.spans import CHOICES, Span
from stoker.inspect.figures import figures_of
from stoker.metrics import Point
from stoker.models import Deploy
from stoker.models.metrics import Sums

from tests.browser import seeds
from tests.dashboard.conftest import PREFIX

MOST_BYTES = 60_000
MOST_QUERIES = 15
BEGIN = datetime(2030, 3, 30, 20, 40, tzinfo=UTC)


def axis_of(name: str, *successful: int, deploys: tuple[Deploy, ...] = ()) -> TimeAxis:
    """Return the axis of a history with these numbers of jobs. Each ran a second; 0 = no data."""
    length, step = CHOICES[name]
    span = Span(name, BEGIN, BEGIN + timedelta(seconds=length), step, [])
    counts = successful or (1,) * (length // step)
    points = []
    for number, count in enumerate(counts):
        sums = Sums(successful=count, run_seconds=float(count))
        if count:
            sums.run_classes[40] = count
        start = BEGIN + timedelta(seconds=number * step)
        points.append(Point(start, step, figures_of(sums), None))
    return TimeAxis(points, span, "/stoker/jobs/", deploys)


@pytest.mark.parametrize(
    ("largest", "labels"),
    [
        (0, ["1 job", "0"]),
        (3, ["3 jobs", "2", "1", "0"]),
        (354, ["400 jobs", "300", "200", "100", "0"]),
        (12_300, ["15k jobs", "10k", "5k", "0"]),
    ],
)
def test_axis_of_jobs_has_round_steps(largest: float, labels: list[str]) -> None:
    axis = jobs_axis(largest)
    assert [tick.label for tick in axis.ticks] == labels
    assert axis.ticks[0].at == "0.0%"
    assert axis.ticks[-1].at == "100.0%"
    assert axis.top >= largest


@pytest.mark.parametrize(
    ("largest", "labels"),
    [
        (0.0, ["0.1 ms", "0"]),
        (0.35, ["400 ms", "300 ms", "200 ms", "100 ms", "0"]),
        (1.7, ["2 s", "1.5 s", "1 s", "500 ms", "0"]),
        (100.0, ["2 min", "1 min 30 s", "1 min", "30 s", "0"]),
        (7 * 86400.0, ["8 d", "6 d", "4 d", "2 d", "0"]),
    ],
)
def test_axis_of_a_duration_has_round_steps_with_units(largest: float, labels: list[str]) -> None:
    axis = duration_axis(largest)
    assert [tick.label for tick in axis.ticks] == labels
    assert axis.top >= largest


def test_times_are_round_in_the_time_zone_of_the_project() -> None:
    """The clock in Berlin is set ahead in this night."""
    with timezone.override("Europe/Berlin"):
        assert [one.label for one in axis_of("hour").ticks] == [
            "21:40", "21:50", "22:00", "22:10", "22:20", "22:30",
        ]  # fmt: skip
        assert [one.label for one in axis_of("day").ticks] == [
            "00:00", "04:00", "08:00", "12:00", "16:00", "20:00",
        ]  # fmt: skip
        assert [one.label for one in axis_of("week").ticks] == [
            "Sun 31", "Mon 1", "Tue 2", "Wed 3", "Thu 4", "Fri 5", "Sat 6",
        ]  # fmt: skip
    first = axis_of("hour").ticks[0]
    assert (first.at, first.label) == ("0.00%", "20:40")


def test_value_without_neighbours_is_a_dot() -> None:
    chart = latency_chart(axis_of("hour", 0, 5, 0, 0, 5, 5))
    assert {(one.kind, one.x) for one in chart.dots} == {
        (kind, "25.00%") for kind in ("p50", "p95", "p99")
    }
    line = next(one.path for one in chart.shapes if one.kind == "line p50")
    assert line.count("M") == 2
    assert line.count("L") == 1
    assert [row.step for row in chart.rows] == [1, 4, 5]


def test_no_bar_is_higher_than_the_axis() -> None:
    chart = throughput_chart(axis_of("hour", 3, 0, 354))
    (bars,) = [one.path for one in chart.shapes]
    assert [float(y) for y in re.findall(r"M\S+ ([\d.]+)h", bars)] == [119.1, 13.8]


def test_chart_without_backlog_has_no_rows() -> None:
    assert not backlog_chart(axis_of("hour", 1)).rows


def test_deploys_are_marked() -> None:
    at = BEGIN + timedelta(seconds=90)
    old = Deploy(cluster="stoker", host="web-0", at=BEGIN - timedelta(days=1))
    axis = axis_of("hour", 1, 1, 1, deploys=(old, Deploy(cluster="stoker", host="web-1", at=at)))
    (mark,) = axis.marks
    assert mark.at == "50.00%"
    assert mark.label == "new code since 2030-03-30 20:41:30 UTC, first on web-1"
    assert [row.head for row in throughput_chart(axis).rows] == [
        "20:40",
        "20:41, new code",
        "20:42",
    ]


@pytest.mark.postgres
def test_chart_opens_the_jobs_of_its_queue(anna: Client) -> None:
    seeds.history()
    page = anna.get(PREFIX + "queues/one/", {"name": "mail"}).content.decode()
    assert page.count('data-jobs="/stoker/jobs/?queue=mail"') == 4
    page = anna.get(PREFIX + "tasks/one/", {"name": "shop.tasks.charge_card"}).content.decode()
    assert page.count('data-jobs="/stoker/jobs/?task=shop.tasks.charge_card"') == 3
    Deploy.objects.note(settings_for().cluster, "web-7", "a")
    page = anna.get(PREFIX).content.decode()
    assert "first on web-7" in page


@pytest.mark.postgres
@pytest.mark.parametrize("last", ["hour", "day", "week"])
def test_overview_with_a_full_history_is_small(
    anna: Client, last: str, django_assert_max_num_queries: Any
) -> None:
    seeds.history()
    figures.forget()
    with django_assert_max_num_queries(MOST_QUERIES):
        page = anna.get(PREFIX, {"last": last})
    assert page.content.count(b"<tr data-step") > 80
    assert len(page.content) < MOST_BYTES, len(page.content)
