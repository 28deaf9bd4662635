"""Search jobs: by state, with filters, in pages along an index.

Filters without an index (task, part of a name, queue of finished jobs) scan the next ``LOOKED_AT``
jobs in the order of the list. Such a page says how far it has scanned, and the next one continues
from there.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import models
from django.db.models import Q

from stoker.models.deferred import Deferred
from stoker.models.job import Job
from stoker.models.ready import Ready
from stoker.store.engines import engine_of
from stoker.store.places import PLACES
from stoker.values.marks import key_of, mark_of
from stoker.values.text import stored_text

ENDED = tuple(str(status) for status in Job.Status)
STATES = ("READY", "RUNNING", "DEFERRED", "BLOCKED", *ENDED)
LOOKED_AT = 10_000
COUNTED = 10_000
"""Maximum count of each state."""
LONGEST_TEXT = 200
KINDS = {"finished_at": datetime, "id": UUID, "job_id": UUID, "due_us": int, "rank": int}
"""The types of the columns that lists are ordered by."""


@dataclass(frozen=True, slots=True)
class JobFilter:
    """A filter of jobs; "" = any."""

    state: str = ""
    queue: str = ""
    task: str = ""
    """Dotted path."""
    text: str = ""
    """Text in the task's dotted path or in the reason of a failure or cancellation."""


@dataclass(frozen=True, slots=True)
class JobPage:
    """A page of jobs, in an order that depends on the state."""

    jobs: Sequence[Job]
    """Without package and value."""
    next: str | None
    """Start of the next page; None = this is the last page."""
    is_cut: bool = False
    """Whether jobs that were not scanned may match as well."""


def tally(alias: str) -> dict[str, int]:
    """Return the number of jobs by state, counted up to ``COUNTED`` + 1, with one query."""
    rows = engine_of(alias).fetch("job_tally", {}, limit=str(COUNTED + 1))
    return dict(rows)


class JobSearch:
    """A search for jobs in one store.

    Raises:
        ValueError: the state is unknown.
    """

    def __init__(self, alias: str, wanted: JobFilter) -> None:
        if wanted.state not in ("", *STATES):
            raise ValueError(f"state={wanted.state!r}: there is {', '.join(STATES)}.")
        self._alias = alias
        self._wanted = wanted
        self._jobs = Job.objects.using(alias).defer("package", "value")

    def page(self, limit: int, after: str | None = None) -> JobPage:
        """Return a page of jobs.

        Args:
            limit: maximum number.
            after: ``JobPage.next`` of the previous page.

        Raises:
            ValueError: ``after`` is invalid.
        """
        rows, order = self._rows()
        place = (
            None if after is None else key_of(after, [KINDS[name.lstrip("-")] for name in order])
        )
        if place is not None:
            rows = rows.filter(_beyond(order, place))
        rows = rows.order_by(*order)
        condition = self._condition(rows.model)
        if condition is None:
            return self._shown(list(self._keys(rows, order)[: limit + 1]), limit)
        edge = self._keys(rows, order)[LOOKED_AT : LOOKED_AT + 1].first()
        if edge is not None:
            rows = rows.exclude(_beyond(order, edge))
        found = list(self._keys(rows.filter(condition), order)[: limit + 1])
        if len(found) > limit or edge is None:
            return self._shown(found, limit)
        page = self._shown(found, limit)
        return JobPage(page.jobs, mark_of(edge), is_cut=True)

    def slowest(self, limit: int, since: datetime) -> list[Job]:
        """Return the jobs of the task with the longest last attempt, each with the attribute
        ``ran``.

        Scans as many recent successful jobs as a page does.

        Args:
            limit: maximum number.
            since: earliest end of the jobs.
        """
        ended = Job.objects.using(self._alias).filter(status=Job.Status.SUCCESSFUL)
        ended = ended.filter(finished_at__gte=since).order_by("-finished_at", "-id")
        edge = ended.values_list("finished_at", flat=True)[LOOKED_AT : LOOKED_AT + 1].first()
        rows = ended.filter(finished_at__gte=edge or since, task=self._wanted.task)
        times: Any = rows.exclude(started_at=None).values_list("pk", "started_at", "finished_at")
        ran = {pk: (finished - started).total_seconds() for pk, started, finished in times}
        longest = heapq.nlargest(limit, ran, key=ran.__getitem__)
        jobs = self._jobs.in_bulk(longest)
        return [_with_ran(jobs[pk], ran[pk]) for pk in longest if pk in jobs]

    def _rows(self) -> tuple[models.QuerySet[Any], tuple[str, ...]]:
        """Return the table to read, and an order for which it has an index."""
        state, queue = self._wanted.state, self._wanted.queue
        if state in ENDED:
            rows = Job.objects.using(self._alias).filter(status=state)
            return rows, ("-finished_at", "-id")
        if not state:
            return Job.objects.using(self._alias).all(), ("-id",)
        table = PLACES[state.lower()]
        waiting: models.QuerySet[Any] = table._default_manager.using(self._alias).all()
        if table is Deferred:
            return waiting, ("due_us", "job_id")
        if table is Ready and queue:
            return waiting.filter(queue=queue), ("rank", "job_id")
        return waiting, ("-job_id",)

    def _condition(self, model: type[models.Model]) -> Q | None:
        """Return the condition that no index covers, or None."""
        wanted, text = self._wanted, stored_text(self._wanted.text, LONGEST_TEXT)
        of_job = Q()
        if wanted.task:
            of_job &= Q(task=wanted.task)
        if text:
            of_job &= Q(task__icontains=text) | Q(reason__icontains=text)
        condition = Q()
        if of_job:
            jobs = Job.objects.using(self._alias).filter(of_job)
            condition &= of_job if model is Job else Q(job_id__in=jobs.values("pk"))
        if wanted.queue and model is not Ready:
            condition &= Q(queue=wanted.queue)
        return condition or None

    def _keys(self, rows: models.QuerySet[Any], order: Sequence[str]) -> Any:
        return rows.values_list(*(name.lstrip("-") for name in order))

    def _shown(self, found: Sequence[Sequence[Any]], limit: int) -> JobPage:
        """Return the jobs with these keys, in the same order."""
        shown = found[:limit]
        jobs = self._jobs.in_bulk([key[-1] for key in shown])
        mark = mark_of(shown[-1]) if len(found) > limit else None
        return JobPage([jobs[key[-1]] for key in shown if key[-1] in jobs], mark)


def _with_ran(job: Job, seconds: float) -> Job:
    job.ran = seconds  # type: ignore[attr-defined] # for the screen that asks
    return job


def _beyond(order: Sequence[str], place: Sequence[Any]) -> Q:
    """Return the condition for rows after a position in this order."""
    first, last = order[0], order[-1]
    name, key = first.lstrip("-"), last.lstrip("-")
    then = "lt" if last.startswith("-") else "gt"
    if len(order) == 1:
        return Q(**{f"{key}__{then}": place[0]})
    beside = Q(**{name: place[0], f"{key}__{then}": place[1]})
    # The first part is what an index can begin with.
    return Q(**{f"{name}__{then}e": place[0]}) & (Q(**{f"{name}__{then}": place[0]}) | beside)
