"""Prepares what each page of the dashboard shows in the tests."""

from __future__ import annotations

from typing import Any

from django.db.models import Value
from django.db.models.functions import Replace

from stoker import chain, chord, every, group, queues, schedules
from stoker.conf import settings_for
from stoker.models import Attempt, Blocked, DeadLetter, GuardKey, LogChunk, Schedule
from stoker.operations import bulk, waiting_jobs
from stoker.operations.operation import Operator

from tests.browser import seeds
from tests.cluster.clusters import ROOT, WAIT_SECONDS, wait_for

PAGES = {
    "overview": "",
    "jobs": "jobs/",
    "search": "jobs/?q=missing&since=1d&task=shop.tasks.resize_photo",
    "job-failed": "jobs/{failed}/",
    "job-waiting": "jobs/{waiting}/",
    "job-running": "jobs/{running}/",
    "edit-job": "jobs/{waiting}/edit/",
    "edit-letter": "dead-letters/{letter}/edit/",
    "edit-all": "bulk/new/?kind=job&q=send_receipt&arguments=%7B%22to%22:%22{{to}}!%22%7D",
    "queues": "queues/",
    "queue": "queues/one/?name=mail",
    "guards": "guards/",
    "guard": "guards/{guard}/",
    "tasks": "tasks/",
    "task": "tasks/one/?name=shop.tasks.charge_card",
    "dead-letters": "dead-letters/",
    "dead-letter": "dead-letters/{letter}/",
    "all-that-match": "bulk/new/?kind=letter&q=bank&arguments=%7B%22amount%22:%22{{amount}}!%22%7D",
    "bulk-operations": "bulk/",
    "bulk": "bulk/{bulk}/",
    "schedules": "schedules/",
    "schedule": "schedules/{schedule}/",
    "add-schedule": "schedules/add/",
    "edit-schedule": "schedules/{schedule}/edit/",
    "workflows": "workflows/",
    "workflow": "workflows/{workflow}/",
    "clusters": "clusters/",
    "audit": "audit/",
}


class Scenes:
    """Enqueues jobs, waits for their outcomes, and knows the URLs of their pages."""

    def __init__(self) -> None:
        from shop import tasks

        self._tasks = tasks
        self._ids: dict[str, Any] = {}
        self._jobs()
        self._schedules()
        self._workflows()

    @staticmethod
    def names() -> list[str]:
        return list(PAGES)

    def address_of(self, name: str) -> str:
        return "/stoker/" + PAGES[name].format(**self._ids)

    def end(self) -> None:
        """Cancel long jobs, so that other tests need not wait for them."""
        for job in reversed(self._long):
            job.cancel()
        queues.resume("mail")

    def _jobs(self) -> None:
        tasks = self._tasks
        queues.pause("mail", by="alice", because="the provider is down")
        waiting = [
            tasks.send_receipt.enqueue(1030 + number, to=name)
            for number, name in enumerate(("carol", "dave", "erin", "frank"))
        ]
        failed = [
            tasks.charge_card.enqueue(1041 + number, f"{number}9.90 EUR") for number in range(4)
        ]
        failed += [tasks.resize_photo.enqueue(f"missing-{number}.jpg") for number in range(2)]
        successful = tasks.resize_photo.enqueue("lighthouse.jpg", width=1200)
        tasks.send_receipt.using(run_after=3600).enqueue(1050, to="grace")
        successful.wait(WAIT_SECONDS)
        ids = [job.id for job in failed]
        wait_for(lambda: DeadLetter.objects.filter(job_id__in=ids).count() == len(ids))
        _forget_the_machine()
        self._long = [tasks.print_label.enqueue(7, seconds=3600.0) for _ in range(3)]
        wait_for(lambda: Blocked.objects.count() == 2)
        wait_for(lambda: any(_has_lines(job.id) for job in self._long))
        letter = DeadLetter.objects.filter(job_id__in=ids).first()
        assert letter is not None
        self._ids |= {
            "failed": failed[0].id,
            "waiting": waiting[2].id,
            "running": next(job.id for job in self._long if _has_lines(job.id)),
            "letter": letter.pk,
            "guard": GuardKey.objects.get(name="limit printer").pk,
            "bulk": self._hold([job.id for job in waiting], failed[0].id),
        }

    @staticmethod
    def _hold(waiting: list[str], ended: str) -> Any:
        """Hold these jobs, except one that has ended, and put them back."""
        alice = Operator(settings_for(), "alice", "the provider is down")
        done = bulk.perform(alice, waiting_jobs.HOLD, {"ids": [*waiting, ended]})
        wait_for(lambda: bulk.get(alice.settings, done.value.pk).ended_at is not None)
        bulk.undo_at_once(alice, str(done.value.pk))
        return done.value.pk

    def _schedules(self) -> None:
        tasks = self._tasks
        row = schedules.create("refresh the shop window", tasks.pack, every(hours=1, args=[1, "x"]))
        seeds.ticks(row)
        schedules.create("remind of unpaid orders", tasks.pack, every(days=1, args=[2, "y"]))
        schedules.pause("remind of unpaid orders", by="alice", because="until the bank is back")
        self._ids["schedule"] = row.pk
        wait_for(lambda: Schedule.objects.count() >= 3)

    def _workflows(self) -> None:
        tasks = self._tasks
        items = ("lamp", "rope", "anchor", "compass", "chart")
        packed = group(*(tasks.pack.si(1060, item) for item in items)).named("packing")
        done = chord(packed, tasks.ship.s()).enqueue(name="order 1060")
        done.wait(WAIT_SECONDS)
        photos = group(
            *(tasks.resize_photo.si(name) for name in ("a.jpg", "missing-b.jpg", "c.jpg"))
        )
        flow = chain(
            tasks.pack.si(1061, "tent"), photos.named("photos"), tasks.send_receipt.si(1061)
        ).enqueue(name="order 1061")
        wait_for(lambda: (flow.refresh(), flow.is_finished)[1])
        chain(tasks.pack.si(1062, "oars"), tasks.send_receipt.si(1062)).enqueue(name="order 1062")
        self._ids["workflow"] = flow.id


def _has_lines(job_id: str) -> bool:
    return LogChunk.objects.filter(job_id=job_id).exists()


def _forget_the_machine() -> None:
    """Replace this machine's paths in tracebacks, for the pictures."""
    for model in (Attempt, DeadLetter):
        rows: Any = model.objects.all()
        for folder in ("tests/browser/project", "src"):
            old, new = Value(str(ROOT / folder)), Value("/srv")
            rows.update(traceback=Replace("traceback", old, new))
