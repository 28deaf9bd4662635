"""The operations that differ between databases, one method each.

The default methods here, in ``rows.py`` and in ``sessions.py`` write one row after another.
``postgresql.py``, ``mysql.py`` and ``sqlite.py`` override them where their database has a better
way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.conf import settings
from django.db import models, transaction
from django.db.models.constants import OnConflict
from django.utils import timezone

from stoker.store.written import (
    DatabaseNow,
    Written,
    as_uuid,
    database_now_us,
    microseconds,
    statement,
)

from .rows import GuardRows

if TYPE_CHECKING:
    from stoker.models.claimed import Claim, LeaseKey, Leasing, Released
    from stoker.models.guard_key import Decisions
    from stoker.models.job import JobColumns, Message
    from stoker.models.step import StepEnd

JOBS, READY = "stoker_job", "stoker_ready"
BLOCKED, DEFERRED = "stoker_blocked", "stoker_deferred"
JOB = (
    "id", "task", "queue", "priority", "package", "enqueued_at", "run_after", "attempts",
    "worker_id", "reason",
)  # fmt: skip
"""Columns of a new job. The other columns stay NULL until the job has ended."""
PLACE = ("job_id", "queue", "rank", "attempts", "crashes", "guards")
"""Columns that all narrow tables have in common."""
CalledLine = tuple[UUID, str, int, bool]
"""Key, queue, number of moved jobs, and whether one was skipped."""


class Engine(GuardRows):
    """Engine of the database with one alias, shared by all threads of a process."""

    # -- jobs -------------------------------------------------------------------------------------

    @property
    def takes_copies(self) -> bool:
        """Return whether rows can be streamed into a table by COPY now."""
        return False

    def insert_jobs(self, jobs: Sequence[Message]) -> set[UUID]:
        """Insert jobs and their ready or deferred rows. Skip ids that exist already.

        Args:
            jobs: the jobs, each id once.

        Returns:
            The ids of the inserted jobs.

        Raises:
            IntegrityError: another transaction is inserting the same job.
        """
        written = Written(self.connection)
        with transaction.atomic(using=self.alias, savepoint=False):
            known = self.find_by_key("job_ids", [job.job_id.hex for job in jobs])
            known_ids = {as_uuid(row[0]) for row in known}
            fresh = [job for job in jobs if job.job_id not in known_ids]
            self.insert_rows(JOBS, JOB, [_job_row(job, written) for job in fresh])
            deferred = [
                (microseconds(job.run_after), *_place_row(job, written))
                for job in fresh
                if job.run_after is not None
            ]
            self.insert_rows(DEFERRED, ("due_us", *PLACE), deferred)
            ready = [_place_row(job, written) for job in fresh if job.run_after is None]
            self.insert_rows(READY, PLACE, ready)
        return {job.job_id for job in fresh}

    def insert_fresh(self, job: Message) -> None:
        """Insert a job whose id is known to be new, that is due and has no guards. Outside a
        transaction, the engine may notify the sleeping pushers in the same message."""
        inserts, connection = self._inserts_of(job), self.connection
        with transaction.atomic(using=self.alias, savepoint=False), connection.cursor() as cursor:
            for insert, values in inserts:
                cursor.execute(insert, values)

    def _inserts_of(self, job: Message) -> list[tuple[str, tuple[Any, ...]]]:
        written = Written(self.connection)
        return [
            (self.insert_into(JOBS, JOB), _job_row(job, written)),
            (self.insert_into(READY, PLACE), _place_row(job, written)),
        ]

    inserts_ended = False
    """Whether the database supports ``insert_ended``, which inserts jobs together with their
    results."""

    def insert_ended(self, jobs: JobColumns) -> set[str]:
        """Insert jobs that have ended, with their results. Only for databases with
        ``inserts_ended``.

        Returns:
            The ids (32 digits) of jobs that were not inserted, because they have a row or continue
            a dead letter.
        """
        raise NotImplementedError  # engines with ``inserts_ended`` have it

    def ensure_jobs(self, jobs: JobColumns) -> None:
        """Insert rows for jobs that wait outside the store, without results. Existing rows are not
        changed."""
        written = Written(self.connection)
        text = self.insert_into(JOBS, JOB)
        ignoring: str = self.connection.ops.insert_statement(on_conflict=OnConflict.IGNORE)
        packages = map(written.data, jobs.packages)
        columns = (jobs.tasks, jobs.queues, jobs.priorities, packages)
        moments = written.moments_or_none(jobs.enqueued_at)
        rows = zip(written.ids(jobs.job_ids), *columns, moments, strict=True)
        with self.connection.cursor() as cursor:
            cursor.executemany(
                text.replace("INSERT INTO", ignoring, 1),
                [(*row, None, 0, "", "") for row in rows],
            )

    def finish_jobs(self, jobs: JobColumns) -> Callable[[], object]:
        """Prepare the statement that records how jobs ended, and return a function that runs it.
        With only one writer at a time, other processes then do not wait for the preparation."""
        written = Written(self.connection)
        started = written.moments_or_none(jobs.started_at)
        finished = written.moments(jobs.finished_at)
        moments = (started, finished, jobs.values, jobs.reasons)
        same = (jobs.statuses, jobs.attempts, jobs.worker_ids, *moments)
        rows = list(zip(*same, written.ids(jobs.job_ids), strict=True))
        return lambda: self._finish_each(rows)

    def _finish_each(self, rows: Sequence[tuple[Any, ...]]) -> None:
        with self.connection.cursor() as cursor:
            cursor.executemany(statement("job_finish_one"), rows)

    def end_steps(self, ends: Sequence[StepEnd]) -> None:
        """Record how workflow steps ended."""
        written = Written(self.connection)
        quote = self.connection.ops.quote_name
        with self.connection.cursor() as cursor:
            cursor.executemany(
                statement("step_end_one", value=quote("value")),
                [
                    (
                        one.state,
                        written.data(one.value),
                        None if one.cause is None else written.id(one.cause),
                        written.id(one.step_id),
                    )
                    for one in ends
                ],
            )

    # -- leases -----------------------------------------------------------------------------------

    claims_by_marks = False
    """Whether ``claim_ready`` can start at watermarks, and skips paused queues itself."""

    def claim_ready(
        self,
        ready: models.QuerySet[Any],
        queues: Sequence[str],
        spans: Mapping[str, list[Any]],
        limit: int,
        leasing: Leasing,
    ) -> list[Claim] | None:
        """Lease the first ready jobs of the given queues that have no guards.

        Args:
            ready: query for all ready rows.
            queues: names of the queues.
            spans: parts of the queues to search, if ``claims_by_marks``.
            limit: largest number of jobs.
            leasing: lease id, holder and length, the same for all new leases.

        Returns:
            The claims. Jobs with guards are included at their place in the order, without a lease
                id. None: the caller has to lock the first jobs and check their guards.
        """
        return None if ready.filter(queue__in=queues).exists() else []

    def claim_free_keys(self, job_ids: Sequence[UUID], leasing: Leasing) -> list[Claim]:
        """Lease those of the ready jobs whose only guard is a lock or a limit with a free key,
        and return their claims. Engines without a statement for that lease none."""
        return []

    def carry_out(
        self,
        ready: models.QuerySet[Any],
        needs: models.QuerySet[Any],
        decisions: Decisions,
        leasing: Leasing,
    ) -> list[Claim]:
        """Carry out decisions about ready jobs that the caller has locked: lease, block or defer
        them, and change their guard keys.

        Args:
            ready: query for all ready rows.
            needs: query for all needs.
            decisions: the decisions about the jobs and keys.
            leasing: lease id, holder and length, the same for all new leases.

        Returns:
            The claims, in the order of ``decisions.leased``.
        """
        write = Written(self.connection).id
        leased = [one.job_id for one in decisions.leased]
        if leased:
            lease = (leasing.lease_id, write(leasing.holder), leasing.lease_us)
            self.find_each("guarded_lease", leased, "PRIMARY", *lease)
        self.delete_by_key(ready, decisions.job_ids)
        since_us = decisions.now_us
        blocked = [
            (since_us, write(key), write(one[0]), *one[1:]) for one, key in decisions.blocked
        ]
        self.insert_rows(BLOCKED, ("since_us", "key_id", *PLACE), blocked)
        deferred = [(due_us, write(one[0]), *one[1:]) for one, due_us in decisions.deferred]
        self.insert_rows(DEFERRED, ("due_us", *PLACE), deferred)
        self.update_each(needs, "fence", decisions.fences, holds="key_id")
        self.change_keys(decisions.keys)
        return self.read_claims(leased, leasing.lease_id)

    def end_needs(self, need_ids: Sequence[UUID]) -> list[tuple[UUID, str, int]] | None:
        """Delete needs and lock their keys. Return the id and kind of each key that may block jobs,
        and the number of freed places. None: the engine has no statement for that."""
        return None

    def extend_leases(
        self, leases: models.QuerySet[Any], keys: Sequence[LeaseKey], lease_us: int
    ) -> set[LeaseKey]:
        """Let leases end ``lease_us`` from now. Skip rows that other transactions have locked.

        Args:
            leases: query for all leases.
            keys: job ids and lease ids to extend.
            lease_us: new length, in microseconds.

        Returns:
            The keys of the extended leases.
        """
        with transaction.atomic(using=self.alias):
            extended = set(self._lock_valid(leases, keys, waits=False))
            until_us = database_now_us(self.alias) + lease_us
            job_ids = [job_id for job_id, _ in extended]
            self.update_by_key(leases, job_ids, leased_until_us=until_us)
        return extended

    def end_leases(
        self, leases: models.QuerySet[Any], digits: Sequence[str], lease_ids: Sequence[int]
    ) -> Sequence[tuple[Any, ...]]:
        """Delete leases.

        Args:
            leases: the rows of all leases.
            digits: the 32 digits of each job's id.
            lease_ids: the lease id of each job, in the same order.

        Returns:
            Job id as the driver returns it, lease id and number of guards of each lease that was
            valid.
        """
        pairs = zip(digits, lease_ids, strict=True)
        valid = self._lock_valid(leases, [(UUID(one), lease_id) for one, lease_id in pairs])
        self.delete_by_key(leases, [job_id for job_id, _ in valid])
        return [(*key, row.guards) for key, row in valid.items()]

    def release(
        self, leases: models.QuerySet[Any], returns: Sequence[Released]
    ) -> list[tuple[UUID, int, int]]:
        """Move leased jobs back to ready or deferred.

        Returns:
            The same as ``end_leases``.
        """
        valid = self._lock_valid(leases, [(back.job_id, back.lease_id) for back in returns])
        by_key = {(back.job_id, back.lease_id): back for back in returns}
        written, now_us = Written(self.connection), database_now_us(self.alias)
        ready: list[Any] = []
        deferred: list[Any] = []
        for key, row in valid.items():
            back = by_key[key]
            counts = (back.attempts, back.crashes, row.guards)
            place = (written.id(row.job_id), row.queue, row.rank, *counts)
            if back.delay_us > 0:
                deferred.append((now_us + back.delay_us, *place))
            else:
                ready.append(place)
        self.delete_by_key(leases, [job_id for job_id, _ in valid])
        self.insert_rows(READY, PLACE, ready)
        self.insert_rows(DEFERRED, ("due_us", *PLACE), deferred)
        return [(*key, row.guards) for key, row in valid.items()]

    def claim_expired(
        self, leases: models.QuerySet[Any], limit: int, leasing: Leasing
    ) -> list[Claim]:
        """Take over leases that have expired. The lost attempt stays counted.

        Args:
            leases: query for all leases.
            limit: largest number of jobs.
            leasing: lease id, holder and length of the new leases.
        """
        over = leases.filter(leased_until_us__lt=DatabaseNow())
        with transaction.atomic(using=self.alias):
            first = self.lockable(over.order_by("leased_until_us"))
            job_ids = list(first.values_list("job_id", flat=True)[:limit])
            until_us = database_now_us(self.alias) + leasing.lease_us if job_ids else 0
            values = {"lease_id": leasing.lease_id, "holder": leasing.holder}
            self.update_by_key(over, job_ids, leased_until_us=until_us, **values)
            return self.read_claims(job_ids, leasing.lease_id)

    def read_claims(self, job_ids: Sequence[UUID], lease_id: int) -> list[Claim]:
        """Return the claims of jobs that have this lease id, in the order of ``job_ids``."""
        if not job_ids:
            return []
        rows = self.find_each("claims", job_ids, "PRIMARY")
        found = {as_uuid(row[0]): row for row in rows if row[1] == lease_id}
        return [self._claim(job_id, found[job_id]) for job_id in job_ids if job_id in found]

    def _claim(self, job_id: UUID, row: tuple[Any, ...]) -> Claim:
        _, lease_id, package, *place, run_after = row
        return (job_id, lease_id, package, *place, 0, 0.0, "", self.as_seconds(run_after))

    def as_seconds(self, moment: datetime | None) -> float | None:
        """Convert a moment from the driver to seconds since 1970."""
        if moment is None:
            return None
        if moment.tzinfo is None and settings.USE_TZ:
            moment = moment.replace(tzinfo=self.connection.timezone)
        return moment.timestamp()

    def _lock_valid(
        self, leases: models.QuerySet[Any], keys: Sequence[LeaseKey], *, waits: bool = True
    ) -> dict[LeaseKey, Any]:
        """Lock the rows of leases and return the valid ones."""
        wanted = set(keys)
        names = ("job_id", "lease_id", "queue", "rank", "guards")
        rows = self.lock_by_key(leases, {job_id for job_id, _ in keys}, *names, waits=waits)
        locked = {(row.job_id, row.lease_id): row for row in rows}
        return {key: locked[key] for key in wanted & locked.keys()}

    # -- jobs that wait ---------------------------------------------------------------------------

    def move_due(
        self, deferred: models.QuerySet[Any], limit: int, from_us: int
    ) -> list[tuple[Any, ...]]:
        """Move deferred jobs that are due to ready.

        Args:
            deferred: query for all deferred rows.
            limit: largest number of jobs.
            from_us: jobs that were due earlier than this may be left for later.

        Returns:
            The new rows in ready.
        """
        due = deferred.filter(due_us__lte=DatabaseNow())
        if not due.exists():
            return []  # without a transaction, because SQLite allows only one writer at a time
        with transaction.atomic(using=self.alias):
            first = self.lockable(due.order_by("due_us"))
            places = list(first.values_list(*PLACE)[:limit])
            self.move_to_ready(deferred, places)
            return places

    def call_first(
        self, blocked: models.QuerySet[Any], counts: Mapping[UUID, int]
    ) -> list[CalledLine]:
        """Move the first jobs of each queue that are blocked by the given keys to ready. Skip jobs
        that other transactions have locked.

        Args:
            blocked: query for all blocked rows.
            counts: guard key -> largest number of jobs per queue.

        Returns:
            Each line with its key, its queue, the number of moved jobs, and whether one was
            skipped.
        """
        lines = self.lines_of(list(counts))
        each = [(*line, counts[line[0]]) for line in lines]
        names, line = ("key_id", *PLACE), ("key_id", "queue")
        places = self.lock_lines(blocked, names, "stoker_blocked_line", line, each)
        self.add_waits_of_blocked([as_uuid(place[1]) for place in places])
        self.move_to_ready(blocked, [place[1:] for place in places])
        moved = Counter((as_uuid(key_id), queue) for key_id, _, queue, *_ in places)
        short = [line[0] for line in lines if moved[line] < counts[line[0]]]
        left = self.lines_of(short) if short and not self.has_one_writer else []
        return [(*line, moved[line], line in left) for line in lines]

    def lines_of(self, key_ids: Sequence[UUID]) -> list[tuple[UUID, str]]:
        """Return the key and queue of each line of the given keys."""
        rows = self.find_each("blocked_queues", key_ids, "stoker_blocked_line") if key_ids else []
        return [(as_uuid(key_id), queue) for key_id, queue in rows]

    def move_to_ready(self, rows: models.QuerySet[Any], places: Sequence[tuple[Any, ...]]) -> None:
        """Move rows that the caller has locked from another narrow table to ready."""
        ids = [as_uuid(place[0]) for place in places]
        self.delete_by_key(rows, ids)
        write = Written(self.connection).id
        self.insert_rows(
            READY, PLACE, [(write(one), *place[1:]) for one, place in zip(ids, places, strict=True)]
        )

    # -- dead letters -----------------------------------------------------------------------------

    def upsert_letters(
        self, kinds: Mapping[str, str], letters: Sequence[Sequence[Any]], newest: Sequence[str]
    ) -> None:
        """Insert dead letters. If a letter exists already, overwrite it with the newer failure.

        Args:
            kinds: column -> its type on PostgreSQL.
            letters: values of each letter, in the order of their identities.
            newest: the columns that a newer failure overwrites.
        """
        marks = ", ".join(["%s"] * len(kinds))
        text = self._letters_text(kinds, f"VALUES ({marks})", newest)
        written = Written(self.connection)
        with self.connection.cursor() as cursor:
            cursor.executemany(
                text, [[_parameter(one, written) for one in letter] for letter in letters]
            )

    def _letters_text(self, kinds: Mapping[str, str], rows: str, newest: Sequence[str]) -> str:
        quote = self.connection.ops.quote_name
        new, end = self.new_value
        text = statement(
            "dead_letter_upsert",
            columns=", ".join(map(quote, kinds)),
            rows=rows,
            conflict=self.on_conflict("identity"),
            new=new,
            end=end,
            newest=",\n    ".join(f"{quote(name)} = {new}{quote(name)}{end}" for name in newest),
        )
        # drivers send rows in batches only if the text starts with INSERT
        return text[text.index("INSERT") :]


def _job_row(job: Message, written: Written) -> tuple[Any, ...]:
    return (
        written.id(job.job_id),
        job.task,
        job.queue,
        job.priority,
        written.data(job.package),
        written.moment(job.enqueued_at),
        written.moment(job.run_after),
        0,
        "",
        "",
    )


def _place_row(job: Message, written: Written) -> tuple[Any, ...]:
    return (written.id(job.job_id), job.queue, -job.priority, 0, 0, len(job.needs))


def _parameter(value: Any, written: Written) -> Any:
    if isinstance(value, UUID):
        return written.id(value)
    if isinstance(value, datetime):
        return written.moment(aware(value).timestamp())
    return written.data(value) if isinstance(value, bytes) else value


def aware(value: datetime) -> datetime:
    """Return a moment with or without a time zone, as the setting ``USE_TZ`` requires."""
    return value if settings.USE_TZ else timezone.make_aware(value)
