"""Statements about the rows of one table, in Django's ORM or in SQL that any database accepts.

``GuardRows`` adds the tables of guards.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from django.db import IntegrityError, models

from stoker.store.written import Written, as_uuid, statement

from .sessions import Sessions

if TYPE_CHECKING:
    from stoker.models.blocked import BlockedLine
    from stoker.models.job import Message
    from stoker.models.need import StatedNeed
    from stoker.models.unique_key import Condition, Taking

Q = TypeVar("Q", bound=models.QuerySet[Any])


class Rows(Sessions):
    """Default implementation for rows of one table, found by their primary keys."""

    now_sql = ""
    """SQL expression of the server's time when the statement runs, in microseconds since 1970."""

    def __init__(self, alias: str) -> None:
        super().__init__(alias)
        self._inserts: dict[tuple[str, tuple[str, ...]], str] = {}

    def fetch(self, name: str, parameters: Any, **words: str) -> list[tuple[Any, ...]]:
        """Run ``sql/<name>.sql`` and return its rows.

        Args:
            name: name of the file.
            parameters: parameters of the statement. On PostgreSQL, lists become arrays.
            words: text for the statement's placeholders in braces.
        """
        return self._read(statement(name, **words), parameters)

    def text_about(self, name: str, rows: models.QuerySet[Any], **words: str) -> str:
        """Return the text of ``sql/<name>.sql`` for the table and primary key of the given rows."""
        quote = self.connection.ops.quote_name
        table, key = quote(rows.model._meta.db_table), quote(rows.model._meta.pk.column)
        return statement(name, table=table, key=key, **words)

    def among(self, keys: Collection[UUID]) -> tuple[str, list[Any]]:
        """Return a condition that a column has one of the given values, without the column's name,
        and its parameters."""
        write = Written(self.connection).id
        return f"IN ({', '.join(['%s'] * len(keys))})", [write(key) for key in keys]

    def find_by_key(self, name: str, digits: Sequence[str], **words: str) -> list[tuple[Any, ...]]:
        """Run ``sql/<name>.sql``, whose ``{among}`` compares a column with a list of ids.

        Args:
            name: name of the statement.
            digits: the 32 hexadecimal digits of each id.
            words: text for the statement's placeholders in braces.
        """
        marks = ", ".join(["%s"] * len(digits))
        return self.fetch(name, list(digits), among=f"IN ({marks})", **words)

    def with_keys(self, rows: models.QuerySet[Any], keys: Collection[UUID]) -> models.QuerySet[Any]:
        """Restrict the query to the given primary keys."""
        return rows.filter(pk__in=keys)

    def is_exactly(self, field: str, text: str) -> models.Q:
        """Return the condition that a field has this text, also in the case of its letters."""
        return models.Q(**{field: text})

    def lockable(self, rows: Q, *, waits: bool = False) -> Q:
        """Let a query lock the rows that it finds, if the database can lock rows.

        Args:
            rows: the query.
            waits: whether to wait for locked rows. False: skip them.
        """
        features = self.connection.features
        if not features.has_select_for_update:
            return rows
        skips = not waits and features.has_select_for_update_skip_locked
        return rows.select_for_update(skip_locked=skips)

    def lock_by_key(
        self, rows: models.QuerySet[Any], keys: Collection[UUID], *names: str, waits: bool = True
    ) -> list[Any]:
        """Lock rows in the order of their primary keys, so that two transactions cannot deadlock.

        Args:
            rows: query for the table.
            keys: primary keys of the rows.
            names: fields to read. None given: all fields.
            waits: whether to wait for locked rows. False: skip them.

        Returns:
            An object with the fields for each locked row.
        """
        found = self.lockable(self.with_keys(rows, keys).order_by("pk"), waits=waits)
        return list(found.values_list(*names, named=True) if names else found)

    def hold(
        self, rows: models.QuerySet[Any], names: Sequence[str], keys: Collection[UUID], lock: str
    ) -> list[tuple[Any, ...]]:
        """Lock rows of a narrow table in the order of their keys.

        Args:
            rows: query for the table.
            names: columns to read.
            keys: keys of the rows.
            lock: "SHARE" or "UPDATE".

        Returns:
            The columns of each locked row.
        """
        among, parameters = self.among(keys)
        return self._read(
            self._hold_text("hold_each", rows, names, f"FOR {lock}", among=among), parameters
        )

    def _hold_text(
        self, name: str, rows: models.QuerySet[Any], names: Sequence[str], lock: str, **words: str
    ) -> str:
        quote = self.connection.ops.quote_name
        columns = ", ".join(f"narrow.{quote(name)}" for name in names)
        return self.text_about(name, rows, columns=columns, lock=lock, **words)

    def lock_lines(
        self,
        rows: models.QuerySet[Any],
        names: Sequence[str],
        index: str,
        line: Sequence[str],
        lines: Sequence[tuple[Any, ...]],
    ) -> list[tuple[Any, ...]]:
        """Lock the first jobs of each line, and skip jobs that other transactions have locked.

        Args:
            rows: query for one narrow table.
            names: columns to read.
            index: the index in the order of the lines.
            line: the fields that select a line.
            lines: values of these fields, and the largest number of jobs, for each line.

        Returns:
            The columns of each locked job, in the order of the lines.
        """
        quote, write = self.connection.ops.quote_name, Written(self.connection).id
        text = self.text_about(
            "lock_line",
            rows,
            columns=", ".join(map(quote, names)),
            condition=" AND ".join(f"{quote(name)} = %s" for name in line),
            rank=quote("rank"),
            **self._line_words(index),
        )
        found: list[tuple[Any, ...]] = []
        for start in range(0, len(lines), LINES_AT_ONCE):
            some = lines[start : start + LINES_AT_ONCE]
            among_others = [self.among_others.format(text)] * len(some)
            together = text if len(some) == 1 else " UNION ALL ".join(among_others)
            given = [write(one) if isinstance(one, UUID) else one for each in some for one in each]
            found += self._read(together, given)
        return found

    among_others = "SELECT * FROM ({}) AS line"
    """Form of a statement with a limit when UNION combines it with others."""

    def _line_words(self, index: str) -> dict[str, str]:
        return {"index": "", "lock": "FOR UPDATE SKIP LOCKED"}

    def find_each(
        self, name: str, keys: Collection[UUID], index: str = "", *before: Any
    ) -> list[tuple[Any, ...]]:
        """Run ``sql/<name>.sql``, which looks up rows for each id of a table ``wanted (id)``.

        Args:
            name: name of the statement. Its placeholders are ``{wanted}`` for that table,
                ``{join}`` for a join that starts with it, and ``{index}`` for MariaDB's index hint.
            keys: the ids in the table.
            index: the index for the look-up.
            before: parameters before the table.
        """
        raise NotImplementedError  # each engine has its own

    def delete_by_key(self, rows: models.QuerySet[Any], keys: Collection[UUID]) -> int:
        """Delete rows by primary key. Wait for no others. Return their number."""
        return self.with_keys(rows, keys).delete()[0] if keys else 0

    def delete_of_jobs(self, rows: models.QuerySet[Any], job_ids: Collection[UUID]) -> None:
        """Delete rows of jobs by the index of ``job_id``. Wait for no others."""
        rows.filter(job_id__in=job_ids).delete()

    def update_by_key(
        self, rows: models.QuerySet[Any], keys: Collection[UUID], **values: Any
    ) -> None:
        """Set these values in rows given by primary key. The caller has locked the rows. A value
        may be an ``F`` of another field of the same row."""
        if keys:
            self.with_keys(rows, keys).update(**values)

    def update_each(
        self, rows: models.QuerySet[Any], name: str, numbers: Mapping[UUID, int], **copied: str
    ) -> None:
        """Set a different number in each row, given by primary key. The caller has locked the rows.

        Args:
            rows: query for the table.
            name: field for the number.
            numbers: primary key -> number.
            copied: further fields to set -> field of the same row to copy from.
        """
        if numbers:
            quote = self.connection.ops.quote_name
            more = "".join(f", {quote(to)} = {quote(name)}" for to, name in copied.items())
            self._update_each(rows, numbers, column=quote(name), more=more)

    def _update_each(
        self, rows: models.QuerySet[Any], numbers: Mapping[UUID, int], **words: str
    ) -> None:
        write = Written(self.connection).id
        with self.connection.cursor() as cursor:
            cursor.executemany(
                self.text_about("update_each_singly", rows, **words),
                [(number, write(key)) for key, number in numbers.items()],
            )

    def insert_rows(
        self, table: str, names: Sequence[str], values: Sequence[Sequence[Any]], then: str = ""
    ) -> None:
        """Insert rows.

        Args:
            names: columns of the table.
            values: values of each row, converted by ``Written``.
            then: end of the statement, see ``on_conflict``.
        """
        if not values:
            return
        text = f"{self.insert_into(table, names)} {then}"
        with self.connection.cursor() as cursor:
            if len(values) == 1:
                cursor.execute(text, values[0])
            else:
                cursor.executemany(text, values)

    def insert_models(self, new: models.QuerySet[Any], rows: Sequence[Any], **options: Any) -> None:
        """Insert objects of one model, see ``bulk_create``."""
        new.bulk_create(rows, **options)

    def insert_into(self, table: str, names: Sequence[str]) -> str:
        """Return the INSERT statement for one row. The text is cached, because building it takes
        longer than running it."""
        key = (table, tuple(names))
        if key not in self._inserts:
            quote = self.connection.ops.quote_name
            columns, marks = ", ".join(map(quote, names)), ", ".join(["%s"] * len(names))
            self._inserts[key] = f"INSERT INTO {quote(table)} ({columns}) VALUES ({marks})"  # noqa: S608 - our own names
        return self._inserts[key]

    new_value = ("excluded.", "")
    """Text before and after a column's name to refer to the value of the failed INSERT."""

    def on_conflict(self, columns: str) -> str:
        """Return the start of the clause that updates an existing row instead of inserting."""
        return f"ON CONFLICT ({columns}) DO UPDATE SET"

    def _read(self, text: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(text, parameters)
            return list(cursor.fetchall())

    def _write(self, text: str, parameters: Sequence[Any]) -> int:
        """Run a statement and return the number of changed rows."""
        with self.connection.cursor() as cursor:
            cursor.execute(text, parameters)
            return int(cursor.rowcount)


LINES_AT_ONCE = 100
"""Lines that are locked by one statement. SQLite allows 500."""
UNIQUE = ("key_id", "name", "job_id", "taken_us", "until_us")
"""Columns of a unique key."""
KEY = (
    "id", "kind", "name", "fence", "places", "places_by", "places_set", "has_line", "period_us",
    "burst", "starts", "due_us",
)  # fmt: skip
"""Columns of a guard key, in the order of its fields."""
CHANGING = ("fence", "places", "places_by", "has_line", "period_us", "burst", "starts", "due_us")
"""Columns of a guard key that a claim may change."""
WAIT = ("job_id", "attempts", "kind", "name", "began_us", "total_us")
"""Columns of a new wait, in the order of the fields of ``NewWait``."""
State = tuple[int, "UUID | None", "UUID | None", str, int]
"""A row of guard_state.sql: its meaning (see below), key, job, queue and number."""
HOLDER, FIRST, HEAD, NOW = 1, 2, 3, 0
"""Values of a row's first column. HOLDER: the job holds a place. FIRST: it is the oldest of a
sequence. HEAD: it is the first of a line. NOW: the row holds the database's time."""


class GuardRows(Rows):
    """Default implementation for the tables of guards: SQLite's, MariaDB's and MySQL's.

    Unique keys are created and taken one by one; the keys and needs of a whole batch of jobs are
    read and changed with a few statements.
    """

    # -- unique keys ------------------------------------------------------------------------------

    def take_new_keys(self, takings: Sequence[Taking]) -> bool:
        """Take unique keys that have no row yet. Wait for transactions that are inserting one of
        them.

        Returns:
            Whether all keys were taken.
        """
        write = Written(self.connection).id
        rows = [
            (write(one.key_id), one.name, write(one.job_id), one.taken_us, one.until_us)
            for one in sorted(takings)  # in order, for the reason given in unique_insert.sql
        ]
        try:
            self.insert_rows("stoker_unique", UNIQUE, rows)
        except IntegrityError:
            return False  # only the statement fails here, not the transaction
        return True

    def take_over_keys(
        self, keys: models.QuerySet[Any], takings: Sequence[Taking], condition: Condition
    ) -> bool:
        """Take unique keys from their present jobs, unless another transaction has taken one first.

        Args:
            keys: query for all unique keys.
            takings: one for each key that was seen to belong to a job.
            condition: checked again in the statement that takes the keys.

        Returns:
            Whether all keys were taken.
        """
        write = Written(self.connection).id
        rows = [
            (
                one.name,
                write(one.job_id),
                one.taken_us,
                one.until_us,
                write(one.key_id),
                write(one.old_job_id),
                one.over_us,
            )
            for one in sorted(takings)
            if one.old_job_id is not None
        ]
        with self.connection.cursor() as cursor:
            cursor.executemany(statement("unique_take_over_one", condition=condition.sql), rows)
            return bool(cursor.rowcount == len(takings))

    def take_key_and_insert(
        self, taking: Taking, condition: Condition, job: Message, letter: Mapping[str, Any]
    ) -> bool:
        """Take a unique key and insert its job, if the database can do both in one statement.

        Args:
            taking: the key.
            condition: must be met by the job that had the key when the key was read.
            job: a job without guards.
            letter: the dead letter that the job continues: parameters of unique_add_one.sql.

        Returns:
            Whether both were done. If not, another transaction took the key, or several statements
            are needed.
        """
        return False

    # -- keys and needs ---------------------------------------------------------------------------

    returns_upserts = False
    """Whether an INSERT that updates existing rows instead can return the rows."""

    def keys_being_made(self, keys: models.QuerySet[Any], key_ids: Collection[UUID]) -> set[UUID]:
        """Return those of the given keys that other transactions have inserted and not committed
        yet, if the database can find out without waiting for them."""
        return set()

    def find_needs(self, need_ids: Collection[UUID]) -> Iterable[tuple[Any, ...]]:
        """Return the needs with these ids, in this order, as tuples of the fields of
        ``StatedNeed``."""
        return [
            (
                *map(as_uuid, row[:3]),
                *row[3:11],
                bool(row[11]),
                None if row[12] is None else as_uuid(row[12]),
                row[13],
            )
            for row in self.find_each("need_of_jobs", need_ids, "PRIMARY")
        ]

    def lock_or_make(
        self, keys: models.QuerySet[Any], needs: Sequence[StatedNeed]
    ) -> list[tuple[Any, ...]]:
        """Lock guard keys. Create missing keys, and raise the fencing number of each.

        Args:
            keys: query for all guard keys.
            needs: one need per key, in the order of the keys.

        Returns:
            The columns of the locked keys.
        """
        write = Written(self.connection).id
        parameters = [
            value
            for need in needs
            for value in (
                write(need.key_id), need.kind, need.name, need.places, write(need.job_id),
                need.period_us, need.burst,
            )
        ]  # fmt: skip
        row = f"(%s, %s, %s, %s, %s, %s, %s, {self.now_sql}, FALSE, '[]')"
        new, end = self.new_value
        rows, conflict = ", ".join([row] * len(needs)), self.on_conflict("id")
        text = statement("key_lock_or_make_each", rows=rows, conflict=conflict, new=new, end=end)
        if self.returns_upserts:
            found = self._read(f"{text} RETURNING {', '.join(KEY)}", parameters)
        else:
            self._write(text, parameters)
            found = self.hold(keys, KEY, [need.key_id for need in needs], "UPDATE")
        return [self.key_fields(row) for row in found]

    def key_fields(self, row: Sequence[Any]) -> tuple[Any, ...]:
        """Convert the columns of a guard key from the driver."""
        key_id, kind, name, fence, places, places_by, places_set, has_line, *rest, starts, due = row
        by = None if places_by is None else as_uuid(places_by)
        if isinstance(starts, str | bytes):  # nearly always there are none
            starts = json.loads(starts) if len(starts) > len("[]") else []
        return (as_uuid(key_id), kind, name, fence, places, by, places_set, bool(has_line), *rest,
                starts, due)  # fmt: skip

    def guard_state(
        self, held: Collection[UUID], sequences: Collection[UUID], lines: Collection[BlockedLine]
    ) -> list[State]:
        """Read the data for decisions about jobs under keys that the caller has locked.

        Args:
            held: keys whose holders to read.
            sequences: sequences whose oldest job to read.
            lines: lines whose first job to read.

        Returns:
            Holders of places, oldest jobs of sequences, first jobs of lines, and the time.
        """
        return [
            (what, key and as_uuid(key), job and as_uuid(job), queue, int(number or 0))
            for what, key, job, queue, number in self._guard_state(held, sequences, lines)
        ]

    def _guard_state(
        self, held: Collection[UUID], sequences: Collection[UUID], lines: Collection[BlockedLine]
    ) -> Sequence[tuple[Any, ...]]:
        raise NotImplementedError  # each engine has its own

    def change_keys(self, keys: Sequence[Any]) -> None:
        """Write the columns that a claim may change, for keys that the caller has locked."""
        write = Written(self.connection).id
        new, end = self.new_value
        names = ("id", "kind", "name", *CHANGING)
        quoted = list(map(self.connection.ops.quote_name, CHANGING))
        changes = ", ".join(f"{name} = {new}{name}{end}" for name in quoted)
        rows = [
            (write(key.pk), key.kind, key.name, key.fence, key.places,
             key.places_by and write(key.places_by), key.has_line, key.period_us, key.burst,
             json.dumps(key.starts), key.due_us)
            for key in keys
        ]  # fmt: skip
        self.insert_rows("stoker_key", names, rows, f"{self.on_conflict('id')} {changes}")

    def add_waits(self, values: Sequence[Sequence[Any]], *more: str) -> None:
        """Insert rows with the columns ``WAIT``, and ``more``. If a row exists, add the time."""
        new, end = self.new_value
        added = f"stoker_wait.total_us + {new}total_us{end}, times = stoker_wait.times + 1"
        adding = f"{self.on_conflict('job_id, attempts, kind, name')} total_us = {added}"
        self.insert_rows("stoker_wait", (*WAIT, *more), values, adding)

    def add_waits_of_blocked(self, job_ids: Collection[UUID]) -> None:
        """Record how long jobs have been blocked. The caller has locked their rows in the blocked
        table, and then moves or deletes them."""
        if job_ids:
            among, keys = self.among(job_ids)
            if waits := self.fetch("wait_of_blocked", keys, among=among, now=self.now_sql):
                self.add_waits(waits)
