"""Jobs that may run now. A claim reads this table and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connections, models

from stoker.store.statements import (
    Written,
    about,
    as_uuid,
    delete_returning_guards,
    fetch,
    insert_rows,
    joins_a_list_in_json,
    moves_a_list_in_json,
    takes_lists,
)


class Place(NamedTuple):
    """One row of a narrow table, as far as they are all the same."""

    job_id: UUID
    queue: str
    rank: int
    attempts: int = 0
    crashes: int = 0
    guards: int = 0


def lock_line(
    rows: models.QuerySet[Any], index: str, limit: int, **line: UUID | str
) -> list[Place]:
    """Lock the first jobs of a line; but for those that others have locked.

    MariaDB is told to take the index, in whose entry it sees that another has the row. If one goes
    by way of the index and the other by the primary key, the one has locked that entry before he
    sees it, and keeps it: the other, who has the row, waits for him when he deletes it.

    Args:
        rows: of one narrow table.
        index: which has the line in its order.
        limit: how many.
        line: the fields by which the line is known.
    """
    connection = connections[rows.db]
    if moves_a_list_in_json(connection):
        return [Place(UUID(row[0]), *row[1:]) for row in look_at_line(rows, limit, **line)]
    if joins_a_list_in_json(connection):
        names = [connection.ops.quote_name(name) for name in (*Place._fields, *line)]
        words = {
            "columns": ", ".join(names[: len(Place._fields)]),
            "index": index,
            "condition": " AND ".join(f"{name} = %s" for name in names[len(Place._fields) :]),
        }
        with connection.cursor() as cursor:
            cursor.execute(about("lock_line", rows, **words), [*map(str, line.values()), limit])
            return [Place(as_uuid(row[0]), *row[1:]) for row in cursor.fetchall()]
    first = rows.filter(**line).order_by("rank", "job_id")
    if connection.features.has_select_for_update_skip_locked:
        first = first.select_for_update(skip_locked=True)
    return [Place(*row) for row in first.values_list(*Place._fields)[:limit]]


def look_at_line(
    rows: models.QuerySet[Any], limit: int, **line: UUID | str
) -> list[tuple[Any, ...]]:
    """The first jobs of a line as SQLite has them: their ids are texts, which sort as ids do."""
    connection = connections[rows.db]
    condition = " AND ".join(f"{connection.ops.quote_name(name)} = %s" for name in line)
    given = [getattr(value, "hex", value) for value in line.values()]
    with connection.cursor() as cursor:
        cursor.execute(about("listed_line", rows, condition=condition), [*given, limit])
        found: list[tuple[Any, ...]] = cursor.fetchall()
        return found


class ReadyQuerySet(models.QuerySet["Ready"]):
    def withdraw(self, job_ids: Sequence[UUID], *, waits: bool = True) -> dict[UUID, int]:
        """Remove these jobs, if no claim was quicker. Returns those removed, each
        with the number of its needs.

        Args:
            job_ids: of the jobs.
            waits: False: leave those alone that somebody else holds.
        """
        return delete_returning_guards(self, job_ids, waits=waits)

    def add(self, places: Iterable[Place]) -> None:
        """Let jobs wait here."""
        written = Written(connections[self.db])
        rows = [(written.id(place.job_id), *place[1:]) for place in places]
        insert_rows(self, Place._fields, rows)

    def lock_first(self, queue: str, limit: int) -> list[Place]:
        """The first jobs of a queue, locked; but for those that others have locked."""
        return lock_line(self, "stoker_ready_line", limit, queue=queue)

    def queues(self) -> list[str]:
        """The names of the queues that have a job here; a handful of index look-ups."""
        connection = connections[self.db]
        if takes_lists(connection):
            return [row[0] for row in fetch(connection, "ready_queues", {})]
        found: list[str] = []
        while True:
            later = self.filter(queue__gt=found[-1]) if found else self.all()
            name = later.order_by("queue").values_list("queue", flat=True).first()
            if name is None:
                return found
            found.append(name)


class Ready(models.Model):
    job_id = models.UUIDField(primary_key=True)
    queue = models.CharField(max_length=100)
    rank = models.SmallIntegerField(default=0)
    """The priority negated, so that one ascending index serves the claim."""
    attempts = models.SmallIntegerField(default=0)
    """Attempts used so far; a claim adds one."""
    crashes = models.SmallIntegerField(default=0)
    guards = models.SmallIntegerField(default=0, db_default=0)
    """How many needs it has: see ``Need``."""

    objects = ReadyQuerySet.as_manager()

    class Meta:
        verbose_name = "ready job"
        indexes = (models.Index(fields=["queue", "rank", "job_id"], name="stoker_ready_line"),)

    def __str__(self) -> str:
        return f"{self.queue} {self.job_id}"
