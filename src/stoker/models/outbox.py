"""The outbox: jobs of a transaction that the broker can take no part in.

A row is written in that transaction, on its database, and deleted when the broker has the job. What
was relayed is remembered for a while in the queues' own database: a relay that died before it could
delete its row is repeated, and must not make a second job of one that has ended since.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from datetime import timedelta
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any
from uuid import UUID

from django.db import connections, models, router
from django.utils import timezone

from stoker.exceptions import BrokerUnavailable
from stoker.store.engines import engine_of
from stoker.store.statements import delete_by_key, with_keys

LOOK_FOR_TABLE_SECONDS = 60.0
SILENT_SECONDS = 30.0
"""How long a database that did not answer is not asked again."""
RELAYED_SECONDS = 7 * 24 * 3600.0
"""A relay is repeated, and what a broker brought comes again, as soon as some cluster looks: longer
than none runs anywhere."""

_has_table: dict[str, bool] = {}
_looked_at: dict[str, float] = {}
_silent_until: dict[str, float] = {}


def has_outbox(alias: str) -> bool:
    """Whether Stoker's migrations have been applied to this database."""
    if _has_table.get(alias):
        return True
    now = time.monotonic()
    if alias in _looked_at and now - _looked_at[alias] < LOOK_FOR_TABLE_SECONDS:
        return False
    connection: Any = connections[alias]
    is_alone = engine_of(alias).is_private
    if connection.in_atomic_block and not is_alone:
        # By a connection of its own: on SQLite, a transaction that has read may not write any more.
        connection = connection.copy()
    try:
        with connection.cursor() as cursor:
            names = connection.introspection.table_names(cursor)
    finally:
        if connection is not connections[alias]:
            connection.close()
    _looked_at[alias] = now
    _has_table[alias] = Outgoing._meta.db_table in names
    return _has_table[alias]


def forget_tables() -> None:
    """Look again which databases have an outbox: tests make and drop databases."""
    _has_table.clear()
    _looked_at.clear()
    _silent_until.clear()


def possible_outboxes(store: str, *, joins_transactions: bool) -> list[str]:
    """The databases that may have an outbox in which jobs for a broker wait. None is asked.

    Args:
        store: the alias of the queues' own database.
        joins_transactions: whether enqueues are part of the transactions of that one.
    """
    return [
        alias
        for alias in connections
        if not (alias == store and joins_transactions)
        and router.allow_migrate(alias, "stoker", model_name="outgoing")
    ]


def find_outgoing(
    alias: str, job_ids: Collection[UUID], store: str, seconds: float
) -> list[Outgoing]:
    """The rows of these jobs in the outbox of this database, if it has one.

    Another database than the store's may accept connections and never answer. So it is asked in a
    thread and by a connection of its own, unless this thread has a transaction open there.

    Raises:
        BrokerUnavailable: the database did not answer within so many seconds, a short while ago or
            now.
    """

    def find() -> list[Outgoing]:
        return (
            list(Outgoing.objects.using(alias).filter(pk__in=job_ids)) if has_outbox(alias) else []
        )

    connection: Any = connections[alias]
    is_alone = engine_of(alias).is_private
    if alias == store or connection.in_atomic_block or is_alone:
        return find()
    if time.monotonic() < _silent_until.get(alias, 0.0):
        raise _silent(alias)
    answers: SimpleQueue[list[Outgoing] | Exception] = SimpleQueue()

    def answer() -> None:
        try:
            answers.put(find())
        except Exception as error:  # noqa: BLE001 - raised again where it was asked for
            answers.put(error)
        finally:
            connections[alias].close()

    Thread(target=answer, name=f"outbox of {alias}", daemon=True).start()
    try:
        found = answers.get(timeout=seconds)
    except Empty:
        _silent_until[alias] = time.monotonic() + SILENT_SECONDS
        raise _silent(alias) from None
    if isinstance(found, Exception):
        raise found
    return found


def _silent(alias: str) -> BrokerUnavailable:
    return BrokerUnavailable(
        f"The database {alias!r} does not answer, so nobody can say whether the job waits in its "
        "outbox."
    )


class OutgoingQuerySet(models.QuerySet["Outgoing"]):
    def lock_first(self, backend: str, limit: int, after: UUID | None = None) -> list[Outgoing]:
        """Lock up to so many rows, the oldest first, but for those that somebody is relaying. Only
        those that come after this one, if it is given."""
        rows = self.filter(backend=backend)
        if after is not None:
            rows = rows.filter(job_id__gt=after)
        return list(rows._lockable()[:limit])

    def lock_these(self, job_ids: Collection[UUID]) -> list[Outgoing]:
        """Lock these rows, as far as they are there and nobody is relaying them."""
        return list(self.filter(pk__in=job_ids)._lockable())

    def be_the_writer(self) -> None:
        """On SQLite: begin the open transaction with a write, which waits for other writers. One
        that has read first is refused at once."""
        if not connections[self.db].features.has_select_for_update:
            self.filter(backend="").update(priority=0)

    def _lockable(self) -> OutgoingQuerySet:
        rows = self.order_by("job_id")
        if connections[self.db].features.has_select_for_update_skip_locked:
            return rows.select_for_update(skip_locked=True)
        return rows


class Outgoing(models.Model):
    """One job that its broker does not have yet."""

    job_id = models.UUIDField(primary_key=True)
    backend = models.CharField(max_length=100)
    """The name under ``TASKS``."""
    task = models.CharField(max_length=255)
    queue = models.CharField(max_length=100)
    priority = models.SmallIntegerField(default=0)
    package = models.BinaryField()
    enqueued_at = models.FloatField()
    """Seconds since 1970, as is ``run_after``."""
    run_after = models.FloatField(null=True)
    needs = models.JSONField(default=list)
    """Its guards, as ``NewNeed`` has them."""
    stays_in_store = models.BooleanField(default=False)
    claim = models.JSONField(null=True)
    """That on its unique key, as ``UniqueClaim`` has it."""

    objects = OutgoingQuerySet.as_manager()

    class Meta:
        verbose_name = "outgoing job"
        db_table = "stoker_outbox"
        indexes = (models.Index(fields=["backend", "job_id"], name="stoker_outbox_line"),)

    def __str__(self) -> str:
        return f"{self.task} {self.pk}"


def as_json(guard: tuple[Any, ...]) -> list[Any]:
    """A tuple that begins with the id of a key."""
    key_id, *rest = guard
    return [str(key_id), *rest]


class RelayedQuerySet(models.QuerySet["Relayed"]):
    def note(self, job_ids: Sequence[UUID]) -> set[UUID]:
        """Remember these, in the transaction that stores their jobs. Returns those that are new.

        Raises:
            IntegrityError: somebody relays one of them at this moment.
        """
        known = set(self.filter(pk__in=job_ids).values_list("pk", flat=True))
        fresh = [job_id for job_id in dict.fromkeys(job_ids) if job_id not in known]
        now = timezone.now()
        self.bulk_create(Relayed(job_id=job_id, relayed_at=now) for job_id in fresh)
        return set(fresh)

    def note_again(self, job_ids: Collection[UUID]) -> None:
        """These have come once more, and may do so again."""
        with_keys(self, job_ids).update(relayed_at=timezone.now())

    def forget(self, seconds: float, limit: int) -> int:
        """Delete up to so many that are older than that. Returns how many."""
        old = self.filter(relayed_at__lt=timezone.now() - timedelta(seconds=seconds))
        job_ids = list(old.order_by("relayed_at").values_list("pk", flat=True)[:limit])
        delete_by_key(self, job_ids)
        return len(job_ids)


class Relayed(models.Model):
    """A job that came from an outbox, or from a broker that may bring it again."""

    job_id = models.UUIDField(primary_key=True)
    relayed_at = models.DateTimeField(db_index=True)

    objects = RelayedQuerySet.as_manager()

    class Meta:
        verbose_name = "relayed job"

    def __str__(self) -> str:
        return str(self.job_id)
