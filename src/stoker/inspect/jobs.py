"""Search jobs: by state, with filters, in pages along an index.

Filters without an index (task, node, text, queue of finished jobs) scan the next ``LOOKED_AT`` jobs
in the order of the list. Such a page says how far it has scanned, and the next one continues from
there.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connections, models
from django.db.models import Case, Q, When
from django.db.models.functions import Length

from stoker.brokers.adapters import broker_for
from stoker.conf import Settings
from stoker.jobs.matching import LARGEST_BYTES, Needle
from stoker.jobs.states import full_progress_of
from stoker.models.attempt import Attempt
from stoker.models.claimed import Claimed
from stoker.models.cluster import LONGEST_HOST, Cluster
from stoker.models.deferred import Deferred
from stoker.models.job import Job
from stoker.models.ready import Ready
from stoker.store.counting import Number, counts_of
from stoker.store.engines import engine_of
from stoker.store.places import PLACES
from stoker.store.statements import with_keys
from stoker.store.written import as_uuid
from stoker.values.ids import first_id_at
from stoker.values.marks import InvalidFilter, beyond, key_of, mark_of, within

ENDED = tuple(str(status) for status in Job.Status)
STATES = ("READY", "RUNNING", "DEFERRED", "BLOCKED", *ENDED)
LOOKED_AT = 10_000
COUNTED_AMONG = 50_000
"""At most this number of jobs per state is read to count those that match a filter."""
COUNTED = 10_000
"""Counts of jobs per state stop at this number."""
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
            raise InvalidFilter(f"state={wanted.state!r}: write one of {', '.join(STATES)}.")
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
            rows = rows.filter(beyond(order, place))
        rows = rows.order_by(*order)
        condition, task = self._condition(rows.model), self._task_beside([rows])
        if not condition and not task and not self._needle.text:
            return self._shown(list(self._keys(rows, order)[: limit + 1]), limit)
        by_id = self._by_id() if after is None else ()
        edge = None
        if condition or task:
            edge = self._keys(rows, order)[LOOKED_AT : LOOKED_AT + 1].first()
            rows = rows if edge is None else rows.filter(within(order, edge))
        keys = self._keys(rows.filter(condition), order)
        if task:
            keys = self._of_task(list(keys))
        if self._needle.text:
            found, stopped_at = self._matching(list(keys[:READ]), limit)
            edge = stopped_at or edge
        else:
            found = list(keys[: limit + 1])
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
        """Return the jobs whose ids begin with the text, the newest first. Also find a job outside
        the database, if the text is its whole id."""
        digits = self._needle.text.replace("-", "")
        if not ID_PREFIX.fullmatch(digits):
            return []
        first, last = (UUID(digits.ljust(32, fill)) for fill in "0f")
        found = list(self._jobs.filter(pk__gte=first, pk__lte=last).order_by("-pk")[:MOST_BY_ID])
        if not found and first == last:
            progress = full_progress_of(self._settings, [first])
            found = [one.job for one in progress.values() if one.job is not None]
        return found

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
        edge, each = self._unended(LOOKED_AT, before, after)
        task = self._task_beside(each)
        limit = READ if task else WALKED
        keys = _first(each, limit)
        last = keys[-1] if len(keys) == limit else edge
        found = self._of_task(keys) if task else keys
        if len(found) > WALKED:
            found, last = found[:WALKED], found[WALKED - 1]
        if self._needle.text:
            self._needle.rest()
            found, stopped_at = self._matching(found, WALKED)
            last = stopped_at or last
        rest = None if last is None else str(last[0])
        return [(key[0], str(key[0])) for key in found], rest

    def count(self, limit: int, before: UUID) -> Number | None:
        """Count the jobs that ``onward`` finds, with two statements.

        Args:
            limit: largest number that is counted.
            before: as for ``onward``.

        Returns:
            The number; it is exact if these are all. None = the filter has a text or a task: only
            ``onward`` finds the jobs.

        Raises:
            ValueError: as ``onward``.
        """
        edge, each = self._unended(COUNTED_AMONG, before)
        if self._task_beside(each) or self._needle.text:
            return None
        counted = counts_of(each, limit)
        number = sum(one.number for one in counted)
        is_exact = edge is None and all(one.is_exact for one in counted)
        return Number(min(number, limit), is_exact and number <= limit)

    def _unended(
        self, looked_at: int, before: UUID, after: str = ""
    ) -> tuple[Sequence[Any] | None, list[models.QuerySet[Any]]]:
        """Return the matching jobs that have not ended, as a query for each table that has some.
        The filter's task and text are left to the caller.

        Conditions without an index apply to the next ``looked_at`` rows of each table. The first
        value is the key of the last row that they apply to, or None if no more rows remain.
        """
        wanted = self._wanted
        if wanted.state in ENDED:
            raise ValueError("Choose jobs that have not ended.")
        states: Sequence[str] = [wanted.state]
        if not wanted.state and broker_for(self._settings).capabilities.transactional:
            states = STATES[: -len(ENDED)]
        if wanted.node and wanted.state != "RUNNING":  # only running jobs are on a node
            states = [one for one in states if one in ("", "RUNNING")]
        range_ = {"pk__lt": before, **({"pk__gt": UUID(after)} if after else {})}
        each = [
            JobSearch(self._settings, replace(wanted, state=state, queue=""))._rows()[0]
            for state in states
        ]
        each = [rows.filter(**range_) for rows in each]
        conditions = [self._unindexed(rows.model) for rows in each]
        edge = None
        if any(conditions) or self._task_beside(each):
            edge = next(iter(_first(each, 1, looked_at)), None)
        if edge is not None:
            each = [rows.filter(pk__lte=edge[0]) for rows in each]
        return edge, [rows.filter(one) for rows, one in zip(each, conditions, strict=True)]

    def _unindexed(self, model: type[models.Model]) -> Q:
        """Return the condition that the index of the ids does not cover, for a search in the order
        of ids."""
        condition = self._condition(model)
        if model is Ready and self._wanted.queue:
            condition &= Q(queue=self._wanted.queue)
        # The jobs themselves are walked if their broker is outside the store.
        return condition & Q(status=None) if model is Job else condition

    def _task_beside(self, each: Sequence[models.QuerySet[Any]]) -> str:
        """Return the task of the filter if these tables do not contain it."""
        return "" if any(rows.model is Job for rows in each) else self._wanted.task

    @property
    def _is_of_task(self) -> Q:
        return engine_of(self._alias).is_exactly("task", self._wanted.task)

    def _of_task(self, keys: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
        """Return the keys of the jobs of the task."""
        if not keys:
            return []
        jobs = with_keys(Job.objects.using(self._alias), [key[-1] for key in keys])
        found = set(jobs.filter(self._is_of_task).values_list("pk", flat=True))
        return [key for key in keys if key[-1] in found]

    def page_from(self, first_id: UUID, limit: int) -> tuple[JobPage, int] | None:
        """Return the page that begins with this job, and the number of newer jobs. Return None if
        the list is not ordered by time, if it needs a filter without an index, or if the job does
        not exist any more.
        """
        rows, order = self._rows()
        is_indexed = not (self._condition(rows.model) or self._task_beside([rows]))
        if self._needle.text or not is_indexed or order[-1][0] != "-":
            return None
        key = rows.filter(pk=first_id).values_list(*(name.lstrip("-") for name in order)).first()
        if key is None:
            return None
        rows = rows.order_by(*order)
        older = beyond(order, key)
        found = [key, *self._keys(rows.filter(older), order)[:limit]]
        newer = rows.filter(beyond([name.lstrip("-") for name in order], key))
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
        rows = ended.filter(self._is_of_task, finished_at__gte=edge or since)
        times: Any = rows.exclude(started_at=None).values_list("pk", "started_at", "finished_at")
        ran = {pk: (finished - started).total_seconds() for pk, started, finished in times}
        longest = heapq.nlargest(limit, ran, key=ran.__getitem__)
        jobs: dict[UUID, Any] = self._jobs.in_bulk(longest)
        for pk, job in jobs.items():
            job.ran = ran[pk]
        return [jobs[pk] for pk in longest if pk in jobs]

    def _rows(self) -> tuple[models.QuerySet[Any], tuple[str, ...]]:
        """Return the rows to search, and a list of columns that orders them along an index."""
        state, queue = self._wanted.state, self._wanted.queue
        since, until = self._wanted.since, self._wanted.until
        if state in ENDED:
            rows = Job.objects.using(self._alias).filter(status=state)
            ends = {"finished_at__gte": since, "finished_at__lt": until}
            ends = {name: moment for name, moment in ends.items() if moment is not None}
            return rows.filter(**ends), ("-finished_at", "-id")
        bounds = {"pk__gte": since, "pk__lt": until}
        ids = {name: first_id_at(one.timestamp()) for name, one in bounds.items() if one}
        if not state:
            return Job.objects.using(self._alias).filter(**ids), ("-id",)
        table = PLACES[state.lower()]
        waiting: models.QuerySet[Any] = table._default_manager.using(self._alias).filter(**ids)
        if table is Deferred:
            return waiting, ("due_us", "job_id")
        if table is Ready and queue:
            return waiting.filter(queue=queue), ("rank", "job_id")
        return waiting, ("-job_id",)

    def _condition(self, model: type[models.Model]) -> Q:
        """Return the condition on this table that no index covers. The task is only in the table
        of jobs."""
        wanted, condition = self._wanted, Q()
        if wanted.task and model is Job:
            condition &= self._is_of_task
        if wanted.queue and model is not Ready:
            condition &= Q(queue=wanted.queue)
        if wanted.node:
            condition &= self._on_node(model)
        return condition

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


def _first(
    each: Sequence[models.QuerySet[Any]], number: int, start: int = 0
) -> list[Sequence[Any]]:
    """Return the first keys of all these tables, in order of id.

    Runs one statement, so a job that moves from one table to another meanwhile is found once.

    Args:
        each: a query for the rows of each table.
        number: maximum number.
        start: how many rows of each table to skip.
    """
    parts, parameters = [], []
    for rows in each:
        some = rows.order_by("pk").values("pk")[start : start + number]
        sql, given = some.query.get_compiler(rows.db).as_sql()
        parts.append(f"SELECT * FROM ({sql}) AS part")  # noqa: S608 - from the ORM
        parameters += given
    if not parts:
        return []
    with connections[each[0].db].cursor() as cursor:
        cursor.execute(f"{' UNION ALL '.join(parts)} ORDER BY 1 LIMIT {number}", parameters)
        return [(as_uuid(job_id),) for (job_id,) in cursor.fetchall()]
