"""The outbox: jobs enqueued in a transaction that their broker cannot join.

A row is written in that transaction, on its database, and deleted when the broker has the job. The
queue's database keeps the ids of relayed jobs for a while. If a process dies between relaying a job
and deleting its row, the relay is repeated, and must not create a second job even if the first one
has ended since.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from operator import itemgetter
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from django.core.signals import setting_changed
from django.db import connections, models, router, transaction
from django.db.models.functions import Length
from django.utils import timezone

from stoker.exceptions import BrokerUnavailable
from stoker.store.engines import engine_of
from stoker.store.statements import delete_by_key, with_keys
from stoker.store.written import parts_of

from .job import Message
from .need import NewNeed

if TYPE_CHECKING:
    from stoker.conf import Settings

T = TypeVar("T")

LOOK_FOR_TABLE_SECONDS = 60.0
SILENT_SECONDS = 30.0
"""Pause in seconds before a database that did not answer is queried again."""
LISTED_AT_ONCE = 500
PAGE_BYTES = 16 << 20
"""Limit of the packages that are read from an outbox together."""
RELAYED_SECONDS = 7 * 24 * 3600.0
"""How long relayed ids are kept, in seconds. Relays and deliveries are repeated as soon as any
cluster runs, so this must exceed the longest time without a cluster."""

_has_table: dict[str, bool] = {}
_looked_at: dict[str, float] = {}
_silent_until: dict[str, float] = {}


def may_have_outbox(alias: str) -> bool:
    """Return whether ``DATABASE_ROUTERS`` allow an outbox in this database, and its connections can
    write. The routers exclude, for example, a replica, which has the table, too."""
    return _is_allowed(alias) and not engine_of(alias).is_read_only


@cache
def _is_allowed(alias: str) -> bool:
    """Ask the routers in a new thread, because its connections are new: the router of
    django-tenants refuses shared tables while a connection uses the schema of a tenant."""
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(router.allow_migrate, alias, "stoker", model_name="outgoing")
        return bool(asked.result())


def has_outbox(alias: str, store: str) -> bool:
    """Return whether this database may have an outbox, and Stoker's migrations have been applied to
    it.

    Args:
        store: alias of the queue's own database, which needs all tables.
    """
    if alias == store:
        return True
    if _has_table.get(alias):
        return may_have_outbox(alias)
    now = time.monotonic()
    if alias in _looked_at and now - _looked_at[alias] < LOOK_FOR_TABLE_SECONDS:
        return False
    if not may_have_outbox(alias):
        return False
    connection: Any = connections[alias]
    engine = engine_of(alias)
    if connection.in_atomic_block and engine.has_one_writer and not engine.is_private:
        # On a separate connection: on SQLite, a transaction that has read may not write any more.
        connection = connection.copy()
    try:
        # Not connection.introspection: that of django-tenants lists the tenant's own tables only.
        introspection = connection.introspection_class(connection)
        with connection.cursor() as cursor:
            names = introspection.table_names(cursor)
    finally:
        if connection is not connections[alias]:
            connection.close()
    _looked_at[alias] = now
    _has_table[alias] = Outgoing._meta.db_table in names
    return _has_table[alias]


def forget_tables() -> None:
    """Clear the cache of databases with an outbox, for tests that create and drop databases."""
    _has_table.clear()
    _looked_at.clear()
    _silent_until.clear()


def _forget_routers(*, setting: str, **_: Any) -> None:
    if setting == "DATABASE_ROUTERS":
        _is_allowed.cache_clear()


setting_changed.connect(_forget_routers)


def possible_outboxes(store: str, *, joins_transactions: bool) -> list[str]:
    """Return the databases that may have an outbox for a broker, without querying them.

    Args:
        store: alias of the queue's own database.
        joins_transactions: whether enqueues join the transactions of that database.
    """
    return [
        alias
        for alias in connections
        if not (alias == store and joins_transactions) and may_have_outbox(alias)
    ]


def why_ambiguous(store: str) -> str:
    """Return what is wrong if another alias that can write names the store's SQLite file, or "". A
    transaction on one connection would wait for the transaction on the other, which waits for
    it."""
    file = engine_of(store).file
    for alias in possible_outboxes(store, joins_transactions=True) if file else ():
        is_mirror = connections[alias].settings_dict.get("TEST", {}).get("MIRROR")
        if engine_of(alias).file == file and not is_mirror:
            return (
                f"The databases {store!r} and {alias!r} are the same SQLite file, {file}: a "
                "transaction on one of them would wait for itself."
            )
    return ""


def find_outgoing(alias: str, job_ids: Collection[UUID], settings: Settings) -> list[Outgoing]:
    """Return the jobs' rows in the outbox of this database, if it has one. Raises: as
    ``ask_outbox``."""
    rows = Outgoing.objects.using(alias).filter(pk__in=job_ids)
    return ask_outbox(alias, lambda: list(rows), settings) or []


def count_outgoing(alias: str, queue: str, settings: Settings) -> int:
    """Return how many jobs of a queue are in the outbox of this database. Raises: as
    ``ask_outbox``."""
    return ask_outbox(alias, _outgoing_in(alias, queue, settings).count, settings) or 0


def outgoing_in(alias: str, queue: str, settings: Settings) -> Iterator[Sequence[UUID]]:
    """Yield the ids of the jobs of a queue in the outbox of this database, in batches. Raises: as
    ``ask_outbox``."""
    rows = _outgoing_in(alias, queue, settings).order_by("pk").values_list("pk", flat=True)

    def first() -> list[UUID]:
        return list(rows[:LISTED_AT_ONCE])

    while job_ids := ask_outbox(alias, first, settings):
        yield job_ids
        rows = rows.filter(pk__gt=job_ids[-1])


def _outgoing_in(alias: str, queue: str, settings: Settings) -> OutgoingQuerySet:
    return Outgoing.objects.using(alias).filter(backend=settings.alias, queue=queue)


def ask_outbox(alias: str, query: Callable[[], T], settings: Settings) -> T | None:
    """Return what a query of the outbox of this database returns; None if it has no outbox.

    A database other than the store's may accept connections and never answer. It is queried in a
    separate thread and connection, unless this thread has a transaction open there.

    Raises:
        BrokerUnavailable: the database did not answer in time, now or a short while ago.
    """

    def find() -> T | None:
        return query() if has_outbox(alias, settings.database) else None

    connection: Any = connections[alias]
    is_alone = engine_of(alias).is_private
    if alias == settings.database or connection.in_atomic_block or is_alone:
        return find()
    if time.monotonic() < _silent_until.get(alias, 0.0):
        raise _silent(alias)
    answers: SimpleQueue[T | Exception | None] = SimpleQueue()

    def answer() -> None:
        try:
            answers.put(find())
        except Exception as error:  # noqa: BLE001 - raised again in the calling thread
            answers.put(error)
        finally:
            connections[alias].close()

    Thread(target=answer, name=f"outbox of {alias}", daemon=True).start()
    try:
        found = answers.get(timeout=settings.database_seconds)
    except Empty:
        _silent_until[alias] = time.monotonic() + SILENT_SECONDS
        raise _silent(alias) from None
    if isinstance(found, Exception):
        raise found
    return found


def _silent(alias: str) -> BrokerUnavailable:
    return BrokerUnavailable(
        f"The database {alias!r} does not answer, so it is unknown whether the job waits in its "
        "outbox."
    )


class OutgoingQuerySet(models.QuerySet["Outgoing"]):
    def lock_first(self, backend: str, limit: int, after: UUID | None = None) -> list[Outgoing]:
        """Lock up to ``limit`` rows that are not being relayed, oldest first, after the given
        id. Return the first of them whose packages have up to ``PAGE_BYTES`` together, at least
        one: more would not come within the deadline of a call, however often it is repeated."""
        rows = self.filter(backend=backend)
        if after is not None:
            rows = rows.filter(job_id__gt=after)
        sizes = list(rows._lockable().values_list("pk", Length("package"))[:limit])
        first: list[tuple[UUID, int]] = next(parts_of(sizes, limit, PAGE_BYTES, itemgetter(1)), [])
        return self.lock_these([pk for pk, _ in first])

    def lock_these(self, job_ids: Collection[UUID]) -> list[Outgoing]:
        """Lock the given rows that exist and are not being relayed."""
        return list(self.filter(pk__in=job_ids)._lockable())

    @contextmanager
    def moving(self) -> Iterator[None]:
        """Open a transaction that moves rows; if one is open, a savepoint in it.

        On MariaDB and MySQL it reads committed: otherwise others could not insert rows until it
        ends. On SQLite it begins with a write, which waits for other writers. A transaction that
        has read first would fail at once instead.
        """
        engine = engine_of(self.db)
        is_open = engine.connection.in_atomic_block
        with transaction.atomic(using=self.db) if is_open else engine.deciding():
            if engine.has_one_writer:
                self.filter(backend="").update(priority=0)
            yield

    def _lockable(self) -> OutgoingQuerySet:
        return engine_of(self.db).lockable(self.order_by("job_id"))


class Outgoing(models.Model):
    """A job that its broker does not have yet."""

    job_id = models.UUIDField(primary_key=True)
    backend = models.CharField(max_length=100)
    """Alias in ``TASKS``."""
    task = models.CharField(max_length=255)
    queue = models.CharField(max_length=100)
    priority = models.SmallIntegerField(default=0)
    package = models.BinaryField()
    enqueued_at = models.FloatField()
    """Seconds since 1970, like ``run_after``."""
    run_after = models.FloatField(null=True)
    needs = models.JSONField(default=list)
    """Guards as lists of the fields of ``NewNeed``."""
    stays_in_store = models.BooleanField(default=False)
    claim = models.JSONField(null=True)
    """Claim of a unique key, as a list of the fields of ``UniqueClaim``."""

    objects = OutgoingQuerySet.as_manager()

    class Meta:
        verbose_name = "outgoing job"
        db_table = "stoker_outbox"
        indexes = (models.Index(fields=["backend", "job_id"], name="stoker_outbox_line"),)

    def __str__(self) -> str:
        return f"{self.task} {self.pk}"

    @classmethod
    def of_message(
        cls, backend: str, message: Message, claim: tuple[Any, ...] | None = None
    ) -> Outgoing:
        """Return the row of a message.

        Args:
            backend: the name under ``TASKS``.
            claim: claim on the job's unique key, if it has one.
        """
        return cls(
            job_id=message.job_id,
            backend=backend,
            task=message.task,
            queue=message.queue,
            priority=message.priority,
            package=message.package,
            enqueued_at=message.enqueued_at,
            run_after=message.run_after,
            needs=[_as_json(need) for need in message.needs],
            stays_in_store=message.stays_in_store,
            claim=None if claim is None else _as_json(claim),
        )

    def as_message(self) -> Message:
        """Return the message of this row."""
        return Message(
            job_id=self.job_id,
            task=self.task,
            queue=self.queue,
            priority=self.priority,
            package=bytes(self.package),
            run_after=self.run_after,
            enqueued_at=self.enqueued_at,
            needs=[NewNeed(UUID(key_id), *rest) for key_id, *rest in self.needs],
            stays_in_store=self.stays_in_store,
        )


def _as_json(guard: tuple[Any, ...]) -> list[Any]:
    """Convert a tuple that begins with a key's id."""
    key_id, *rest = guard
    return [str(key_id), *rest]


class RelayedQuerySet(models.QuerySet["Relayed"]):
    def note(self, job_ids: Sequence[UUID]) -> set[UUID]:
        """Remember these jobs, in the transaction that stores them. Return the new ones.

        Raises:
            IntegrityError: another process is relaying one of them.
        """
        known = set(self.filter(pk__in=job_ids).values_list("pk", flat=True))
        fresh = [job_id for job_id in dict.fromkeys(job_ids) if job_id not in known]
        now = timezone.now()
        self.bulk_create(Relayed(job_id=job_id, relayed_at=now) for job_id in fresh)
        return set(fresh)

    def note_again(self, job_ids: Collection[UUID]) -> None:
        """Renew the records of jobs that were delivered again."""
        with_keys(self, job_ids).update(relayed_at=timezone.now())

    def forget(self, seconds: float, limit: int) -> int:
        """Delete up to ``limit`` older records. Return their number."""
        old = self.filter(relayed_at__lt=timezone.now() - timedelta(seconds=seconds))
        job_ids = list(old.order_by("relayed_at").values_list("pk", flat=True)[:limit])
        delete_by_key(self, job_ids)
        return len(job_ids)


class Relayed(models.Model):
    """A job from an outbox, or from a broker that may deliver it again."""

    job_id = models.UUIDField(primary_key=True)
    relayed_at = models.DateTimeField(db_index=True)

    objects = RelayedQuerySet.as_manager()

    class Meta:
        verbose_name = "relayed job"

    def __str__(self) -> str:
        return str(self.job_id)
