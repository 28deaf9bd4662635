"""Search jobs: by state, with filters, in pages along an index.

Filters without an index (task, node, text, queue of finished jobs) scan the next ``LOOKED_AT`` jobs
in the order of the list. Such a page says how far it has scanned, and the next one continues from
there.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import models
from django.db.models import Case, Q, When
from django.db.models.functions import Length

from stoker.conf import Settings
from stoker.jobs.matching import LARGEST_BYTES, Needle
from stoker.models.attempt import Attempt
from stoker.models.claimed import Claimed
from stoker.models.cluster import LONGEST_HOST, Cluster
from stoker.models.deferred import Deferred
from stoker.models.job import Job
from stoker.models.ready import Ready
from stoker.store.engines import engine_of
from stoker.store.places import PLACES
from stoker.store.statements import with_keys
from stoker.values.ids import first_id_at
from stoker.values.marks import key_of, mark_of

ENDED = tuple(str(status) for status in Job.Status)
STATES = ("READY", "RUNNING", "DEFERRED", "BLOCKED", *ENDED)
LOOKED_AT = 10_000
COUNTED = 10_000
"""The jobs of each state are counted only up to this number."""
READ = 4_000
"""Maximum number of jobs that a page reads to find a text."""
AT_ONCE = (1_000, READ)
"""Number of jobs in the first read, and in the later reads."""
ID_PREFIX = re.compile(r"[0-9a-f]{6,32}")
MOST_BY_ID = 10
WALKED = 1_000
COUNTED_NEW = 99
"""Newer jobs are counted only up to this number plus one."""
KINDS = {"finished_at": datetime, "id": UUID, "job_id": UUID, "due_us": int, "rank": int}
"""Column -> type, for the sort keys of lists."""


@dataclass(frozen=True, slots=True)
class JobFilter:
    """A filter of jobs; "" = any.

    The HTTP API makes it from ``JobQuery``, commands from ``stoker jobs list``, the dashboard and
    operations on many from a query string (``operations.jobs.filter_of``).
    """

    state: str = ""
    queue: str = ""
    task: str = ""
    """Dotted path."""
    text: str = ""
    """Text in the task's dotted path, in an error, in the reason of a cancellation or in an
    argument, or the beginning of the id. See ``Needle``."""
    node: str = ""
    """The host on which the last attempt ran, or runs."""
    since: datetime | None = None
    until: datetime | None = None
    """The job was enqueued from ``since`` on and before ``until``. In lists of ended jobs, these
    limits apply to its end."""


@dataclass(frozen=True, slots=True)
class JobPage:
    """A page of jobs, in an order that depends on the state."""

    jobs: Sequence[Job]
    """Without package and value."""
    next: str | None
    """Start of the next page; None = this is the last page."""
    is_cut: bool = False
    """Whether jobs that were not scanned may match as well."""
    by_id: Sequence[Job] = ()
    """On the first page: jobs whose ids begin with the text. The other filters do not apply to
    them."""


def tally(alias: str) -> dict[str, int]:
    """Return the number of jobs by state, counted up to ``COUNTED`` + 1, with one query."""
    rows = engine_of(alias).fetch("job_tally", {}, limit=str(COUNTED + 1))
    return dict(rows)


class JobSearch:
    """A search for jobs in one store.

    Raises:
        ValueError: the state is unknown.
    """

    def __init__(self, settings: Settings, wanted: JobFilter) -> None:
        if wanted.state not in ("", *STATES):
            raise ValueError(f"state={wanted.state!r}: there is {', '.join(STATES)}.")
        self._settings = settings
        self._alias = alias = settings.database
        self._wanted = wanted
        self._needle = Needle(settings, wanted.text)
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
        if condition is None and not self._needle.text:
            return self._shown(list(self._keys(rows, order)[: limit + 1]), limit)
        by_id = self._by_id() if after is None else ()
        edge = None
        if condition is not None:
            edge = self._keys(rows, order)[LOOKED_AT : LOOKED_AT + 1].first()
            if edge is not None:
                rows = rows.exclude(_beyond(order, edge))
            rows = rows.filter(condition)
        if self._needle.text:
            found, stopped_at = self._matching(list(self._keys(rows, order)[:READ]), limit)
            edge = stopped_at or edge
        else:
            found = list(self._keys(rows, order)[: limit + 1])
        page = self._shown(found, limit)
        if page.next is not None or edge is None:
            return JobPage(page.jobs, page.next, by_id=by_id)
        return JobPage(page.jobs, mark_of(edge), is_cut=True, by_id=by_id)

    def _matching(
        self, keys: Sequence[Sequence[Any]], limit: int
    ) -> tuple[list[Sequence[Any]], Sequence[Any] | None]:
        """Return the keys of the jobs that match the text, at most ``limit + 1``. Also return
        the last key that was read, or None if all keys were read."""
        found: list[Sequence[Any]] = []
        first = 0
        for size in AT_ONCE:
            some = keys[first : first + size]
            seen = self._read([key[-1] for key in some])
            for key in some:
                if key[-1] in seen and self._needle.matches(*seen[key[-1]]):
                    found.append(key)
                if len(found) > limit:
                    return found, None
                if self._needle.is_exhausted:
                    return found, key
            first += size
        return found, keys[-1] if len(keys) >= READ else None

    def _read(self, job_ids: Sequence[UUID]) -> dict[UUID, tuple[str, list[str], bytes | None]]:
        """Return job id -> task, errors and package, which is None if it is large."""
        if not job_ids:
            return {}
        small = Case(When(size__lte=LARGEST_BYTES, then="package"))
        jobs: Any = with_keys(Job.objects.using(self._alias), job_ids)
        sized = jobs.annotate(size=Length("package")).annotate(small=small)
        names = ("pk", "task", "reason", "small", "status", "attempts")
        rows = list(sized.values_list(*names))
        at_first = (Job.Status.SUCCESSFUL, 1)
        tried = [row[0] for row in rows if row[4:] != at_first]
        errors: dict[UUID, list[str]] = {}
        for job_id, name, message in self._failures(tried) if tried else ():
            errors.setdefault(job_id, []).append(f"{name}: {message}")
        return {
            pk: (task, [reason, *errors.get(pk, ())], package and bytes(package))
            for pk, task, reason, package, *_ in rows
        }

    def _failures(self, job_ids: Sequence[UUID]) -> Any:
        """Return job id, class and message of each error."""
        wanted = with_keys(Job.objects.using(self._alias), job_ids).values("pk")
        rows = Attempt.objects.using(self._alias).filter(job_id__in=wanted)
        return rows.values_list("job_id", "exception_class", "message")

    def _by_id(self) -> list[Job]:
        """Return the jobs whose ids begin with the text, the newest first."""
        digits = self._needle.text.replace("-", "")
        if not ID_PREFIX.fullmatch(digits):
            return []
        first, last = (UUID(digits.ljust(32, fill)) for fill in "0f")
        return list(self._jobs.filter(pk__gte=first, pk__lte=last).order_by("-pk")[:MOST_BY_ID])

    def onward(self, after: str, before: UUID) -> tuple[list[tuple[UUID, str]], str | None]:
        """Return the next matching jobs that have not ended, in the order of their ids, for a loop
        over all of them.

        Args:
            after: the mark that the previous call returned; "" = the beginning.
            before: omit jobs with this id or a higher one.

        Returns:
            The id of each job with the mark after it; and the mark of the next page, or None at the
            end.

        Raises:
            ValueError: the filter's state is that of ended jobs.
        """
        state = self._wanted.state
        if state in ENDED:
            raise ValueError("Choose jobs that have not ended.")
        rows, _ = self._rows()
        if not state:  # uses the index of the unfinished jobs
            rows = rows.filter(status=None, finished_at=None).order_by("finished_at", "pk")
        else:
            rows = rows.order_by("pk")
        rows = rows.filter(pk__lt=before)
        if after:
            rows = rows.filter(pk__gt=UUID(after))
        condition = self._condition(rows.model)
        rows = rows if condition is None else rows.filter(condition)
        keys: list[Sequence[Any]] = list(rows.values_list("pk")[:WALKED])
        found, last = keys, keys[-1] if len(keys) == WALKED else None
        if self._needle.text:
            self._needle.rest()
            found, stopped_at = self._matching(keys, WALKED)
            last = stopped_at or last
        rest = None if last is None else str(last[0])
        return [(key[0], str(key[0])) for key in found], rest

    def page_from(self, first_id: UUID, limit: int) -> tuple[JobPage, int] | None:
        """Return the page that begins with this job, and the number of newer jobs. Return None if
        the list is not ordered by time, if it needs a filter without an index, or if the job does
        not exist any more.
        """
        rows, order = self._rows()
        if self._needle.text or self._condition(rows.model) is not None or order[-1][0] != "-":
            return None
        key = rows.filter(pk=first_id).values_list(*(name.lstrip("-") for name in order)).first()
        if key is None:
            return None
        rows = rows.order_by(*order)
        older = _beyond(order, key)
        found = [key, *self._keys(rows.filter(older), order)[:limit]]
        newer = rows.filter(_beyond([name.lstrip("-") for name in order], key))
        return self._shown(found, limit), len(newer.values_list("pk")[: COUNTED_NEW + 1])

    def slowest(self, limit: int, since: datetime) -> list[Job]:
        """Return recent successful jobs of the task, longest last attempt first, each with the
        attribute ``ran``.

        Reads at most ``LOOKED_AT`` jobs.

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
        """Return the rows to search, and a list of columns that orders them along an index."""
        state, queue = self._wanted.state, self._wanted.queue
        since, until = self._wanted.since, self._wanted.until
        if state in ENDED:
            rows = Job.objects.using(self._alias).filter(status=state)
            bounds = {"finished_at__gte": since, "finished_at__lt": until}
            bounds = {name: moment for name, moment in bounds.items() if moment is not None}
            return rows.filter(**bounds), ("-finished_at", "-id")
        ids = {"pk__gte": since and _id_at(since), "pk__lt": until and _id_at(until)}
        ids = {name: job_id for name, job_id in ids.items() if job_id is not None}
        if not state:
            return Job.objects.using(self._alias).filter(**ids), ("-id",)
        table = PLACES[state.lower()]
        waiting: models.QuerySet[Any] = table._default_manager.using(self._alias).filter(**ids)
        if table is Deferred:
            return waiting, ("due_us", "job_id")
        if table is Ready and queue:
            return waiting.filter(queue=queue), ("rank", "job_id")
        return waiting, ("-job_id",)

    def _condition(self, model: type[models.Model]) -> Q | None:
        """Return the condition that no index covers, or None."""
        wanted, condition = self._wanted, Q()
        if wanted.task:
            jobs = Job.objects.using(self._alias).filter(task=wanted.task)
            of_task = Q(task=wanted.task)
            condition &= of_task if model is Job else Q(job_id__in=jobs.values("pk"))
        if wanted.queue and model is not Ready:
            condition &= Q(queue=wanted.queue)
        if wanted.node:
            condition &= self._on_node(model)
        return condition or None

    def _on_node(self, model: type[models.Model]) -> Q:
        """Return the condition for jobs whose last attempt runs or ended on the node."""
        node = self._wanted.node
        clusters = Cluster.objects.using(self._alias).filter(host=node)
        running = Q(holder__in=clusters.values("pk"))
        if model is not Job:
            return running if model is Claimed else Q(pk__in=[])  # jobs in other states do not run
        ended = Q(worker_id__startswith=f"{node[:LONGEST_HOST]}:")
        if self._wanted.state:
            return ended
        claims = Claimed.objects.using(self._alias).filter(running).values_list("pk", flat=True)
        return ended | Q(pk__in=list(claims[:LOOKED_AT]))

    def _keys(self, rows: models.QuerySet[Any], order: Sequence[str]) -> Any:
        return rows.values_list(*(name.lstrip("-") for name in order))

    def _shown(self, found: Sequence[Sequence[Any]], limit: int) -> JobPage:
        """Read the jobs with the found keys, and return them as a page in the same order."""
        shown = found[:limit]
        jobs = self._jobs.in_bulk([key[-1] for key in shown])
        mark = mark_of(shown[-1]) if len(found) > limit else None
        return JobPage([jobs[key[-1]] for key in shown if key[-1] in jobs], mark)


def _id_at(moment: datetime) -> UUID:
    return first_id_at(moment.timestamp())


def _with_ran(job: Job, seconds: float) -> Job:
    job.ran = seconds  # type: ignore[attr-defined] # for the caller's display
    return job


def _beyond(order: Sequence[str], place: Sequence[Any]) -> Q:
    """Return the condition for rows after a position in this order."""
    first, last = order[0], order[-1]
    name, key = first.lstrip("-"), last.lstrip("-")
    then = "lt" if last.startswith("-") else "gt"
    if len(order) == 1:
        return Q(**{f"{key}__{then}": place[0]})
    beside = Q(**{name: place[0], f"{key}__{then}": place[1]})
    # The first part lets the database start at a position of the index.
    return Q(**{f"{name}__{then}e": place[0]}) & (Q(**{f"{name}__{then}": place[0]}) | beside)
