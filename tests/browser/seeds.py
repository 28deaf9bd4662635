"""The shop's history: a made-up hour and week, the same each time."""

from __future__ import annotations

import math
import random
import time
from datetime import timedelta

from django.utils import timezone

from stoker.models import Sample, Schedule, Tally, Tick
from stoker.models.metrics import Sums, TaskInQueue
from stoker.store.written import MICROSECONDS
from stoker.values.histogram import class_of

TASKS = (
    TaskInQueue("payments", "shop.tasks.charge_card"),
    TaskInQueue("mail", "shop.tasks.send_receipt"),
    TaskInQueue("photos", "shop.tasks.resize_photo"),
    TaskInQueue("reports", "shop.tasks.nightly_report"),
)
RATES = (40, 95, 25, 1)
SECONDS = (0.35, 0.08, 1.6, 12.0)


def history(seed: int = 7) -> None:
    """Write tallies and samples: one a minute for the last hour, one an hour for the last week."""
    chance = random.Random(seed)
    now = int(time.time())
    tallies, samples = [], []
    for width, first, last in ((60, 58, 0), (3600, 7 * 24, 3)):
        for back in range(first, last, -1):
            start = now // width * width - back * width
            tide = 1.2 + math.sin(start / (900 if width == 60 else 14_000))
            sums = {
                place: _sums(chance, round(rate * tide * width / 60), seconds)
                for place, rate, seconds in zip(TASKS, RATES, SECONDS, strict=True)
            }
            tallies += list(Tally.objects.rows_of(start, width, sums))
            for place, rate in zip(TASKS, RATES, strict=True):
                ready = max(0, round(rate * (tide - 1) * chance.uniform(0.4, 1.6)))
                samples.append(
                    Sample(
                        start=start,
                        seconds=width,
                        queue=place.queue,
                        ready=ready,
                        running=min(4, ready),
                        oldest_ready_seconds=ready / 30 if ready else None,
                    )
                )
    Tally.objects.bulk_create(tallies)
    Sample.objects.bulk_create(samples)


def _sums(chance: random.Random, count: int, seconds: float) -> Sums:
    sums = Sums()
    sums.failed = sum(chance.random() < 0.012 for _ in range(min(count, 500)))
    sums.retried = 2 * sums.failed
    sums.successful = count - sums.failed
    for _ in range(min(count, 200)):
        ran, waited = seconds * chance.lognormvariate(0, 0.5), chance.expovariate(3)
        sums.run_classes[class_of(ran)] += 1
        sums.wait_classes[class_of(waited)] += 1
        sums.run_seconds += ran
        sums.wait_seconds += waited
    return sums


def ticks(schedule: Schedule, seed: int = 7) -> None:
    """Write the ticks of a week, with an outage."""
    chance = random.Random(seed)
    now = timezone.now().replace(minute=0, second=0, microsecond=0)
    rows = []
    for hours in range(6 * 24, 0, -1):
        at = now - timedelta(hours=hours)
        is_out = 50 < hours < 56
        outcome = Tick.Outcome.MISSED if is_out else Tick.Outcome.FIRED
        if not is_out and chance.random() < 0.04:
            outcome = Tick.Outcome.SKIPPED
        moment_us = int(at.timestamp()) * MICROSECONDS
        rows.append(
            Tick(schedule_id=schedule.pk, moment_us=moment_us, outcome=outcome, fired_us=moment_us)
        )
    Tick.objects.bulk_create(rows)
