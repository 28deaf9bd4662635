"""Statements on the rows of one table, as Django's ORM or plain SQL has them on any database."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

from django.db import models

from stoker.store.written import Written, statement

from .sessions import Sessions


class Rows(Sessions):
    """A database whose rows are found one by one."""

    now_sql = ""
    """An expression of SQL: the server's time when the statement runs, in microseconds since
    1970."""

    def __init__(self, alias: str) -> None:
        super().__init__(alias)
        self._inserts: dict[tuple[str, tuple[str, ...]], str] = {}

    def fetch(self, name: str, parameters: Any, **words: str) -> list[tuple[Any, ...]]:
        """Run ``sql/<name>.sql`` and return its rows.

        Args:
            name: of the file.
            parameters: of the statement. On PostgreSQL lists become arrays.
            words: replace their names in braces.
        """
        with self.connection.cursor() as cursor:
            cursor.execute(statement(name, **words), parameters)
            rows: list[tuple[Any, ...]] = list(cursor.fetchall())
            return rows

    def text_about(self, name: str, rows: models.QuerySet[Any], **words: str) -> str:
        """Return ``sql/<name>.sql`` with the table of these rows and its primary key put in."""
        quote = self.connection.ops.quote_name
        table, key = quote(rows.model._meta.db_table), quote(rows.model._meta.pk.column)
        return statement(name, table=table, key=key, **words)

    def among(self, keys: Collection[UUID]) -> tuple[str, list[Any]]:
        """Return what follows a column's name to say that it has one of these values, and the
        parameters of that."""
        write = Written(self.connection).id
        return f"IN ({', '.join(['%s'] * len(keys))})", [write(key) for key in keys]

    def find_by_key(self, name: str, digits: Sequence[str], **words: str) -> list[tuple[Any, ...]]:
        """Run ``sql/<name>.sql``, in which ``{among}`` says that a column has one of these values.

        Args:
            name: of the statement.
            digits: the 32 digits of each value.
            words: replace their names in braces.
        """
        marks = ", ".join(["%s"] * len(digits))
        return self.fetch(name, list(digits), among=f"IN ({marks})", **words)

    def with_keys(self, rows: models.QuerySet[Any], keys: Collection[UUID]) -> models.QuerySet[Any]:
        """Return those of these rows that have one of these primary keys."""
        return rows.filter(pk__in=keys)

    def lockable(self, rows: models.QuerySet[Any], *, waits: bool = False) -> models.QuerySet[Any]:
        """Let a query lock the rows that it finds, where rows can be locked.

        Args:
            rows: the query.
            waits: whether to wait for rows that others have locked, or to leave them out.
        """
        features = self.connection.features
        if not features.has_select_for_update:
            return rows
        skips = not waits and features.has_select_for_update_skip_locked
        return rows.select_for_update(skip_locked=skips)

    def lock_by_key(
        self, rows: models.QuerySet[Any], keys: Collection[UUID], *names: str, waits: bool = True
    ) -> list[Any]:
        """Lock the rows of these primary keys in the order of the keys: two who want the same rows
        wait for each other in one direction only.

        Args:
            rows: of one table.
            keys: of the rows.
            names: of the fields that are wanted.
            waits: whether to wait for rows that others have locked, or to leave them out.

        Returns:
            For each row something that has its fields of these names; of all names, if none is
            given.
        """
        found = self.lockable(self.with_keys(rows, keys).order_by("pk"), waits=waits)
        return list(found.values_list(*names, named=True) if names else found)

    def hold(
        self, rows: models.QuerySet[Any], names: Sequence[str], keys: Collection[UUID], lock: str
    ) -> list[tuple[Any, ...]]:
        """Lock rows of a narrow table in the order of their keys.

        Args:
            rows: of the table.
            names: of the columns that are wanted.
            keys: of the rows.
            lock: "SHARE" or "UPDATE".

        Returns:
            The columns of each row that was found.
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

    def lock_line(
        self,
        rows: models.QuerySet[Any],
        names: Sequence[str],
        limit: int,
        index: str,
        **line: UUID | str,
    ) -> list[tuple[Any, ...]]:
        """Lock the first jobs of a line, but for those that others have locked.

        Args:
            rows: of one narrow table.
            names: of the columns that are wanted.
            limit: how many jobs.
            index: the one that has the line in its order.
            line: the fields by which the line is known.

        Returns:
            The columns of each job that was found, in the order of the line.
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
        given = [write(one) if isinstance(one, UUID) else one for one in line.values()]
        return self._read(text, [*given, limit])

    def _line_words(self, index: str) -> dict[str, str]:
        return {"index": "", "lock": "FOR UPDATE SKIP LOCKED"}

    def find_each(
        self, name: str, keys: Collection[UUID], index: str = ""
    ) -> list[tuple[Any, ...]]:
        """Run ``sql/<name>.sql``, which finds something for each row of a table ``wanted (id)``.

        Args:
            name: of the statement, in which ``{wanted}`` stands for that table, ``{join}`` for a
                join that begins with it, and ``{index}`` for what makes MariaDB use the index.
            keys: the rows of the table.
            index: the index that each row is looked up by.

        Returns:
            The rows found.
        """
        raise NotImplementedError

    def delete_by_key(self, rows: models.QuerySet[Any], keys: Collection[UUID]) -> None:
        """Delete the rows of these primary keys, which the caller has locked."""
        if keys:
            self.with_keys(rows, keys).delete()

    def update_by_key(
        self, rows: models.QuerySet[Any], keys: Collection[UUID], **values: Any
    ) -> None:
        """Write these values to the rows of these primary keys, which the caller has locked. A
        value may be an ``F``: another field of the same row."""
        if keys:
            self.with_keys(rows, keys).update(**values)

    def update_each(
        self, rows: models.QuerySet[Any], name: str, numbers: Mapping[UUID, int], **copied: str
    ) -> None:
        """Write to each of the rows of these primary keys, which the caller has locked, its own
        number.

        Args:
            rows: of one table.
            name: of the field for the number.
            numbers: primary key -> number.
            copied: other fields, each with the field of the same row from which it takes its value.
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
        self, table: str, names: Sequence[str], values: Sequence[Sequence[Any]]
    ) -> None:
        """Insert rows.

        Args:
            table: its name.
            names: of the columns.
            values: of each row, as ``Written`` writes them.
        """
        if not values:
            return
        text = self.insert_into(table, names)
        with self.connection.cursor() as cursor:
            if len(values) == 1:
                cursor.execute(text, values[0])
            else:
                cursor.executemany(text, values)

    def insert_into(self, table: str, names: Sequence[str]) -> str:
        """Return the statement that inserts a row. It is made once: that takes longer than to run
        it."""
        key = (table, tuple(names))
        if key not in self._inserts:
            quote = self.connection.ops.quote_name
            columns, marks = ", ".join(map(quote, names)), ", ".join(["%s"] * len(names))
            self._inserts[key] = f"INSERT INTO {quote(table)} ({columns}) VALUES ({marks})"  # noqa: S608 - our own names
        return self._inserts[key]

    new_value = ("excluded.", "")
    """What stands before and after a column's name for the value that an INSERT had for it."""

    def on_conflict(self, column: str) -> str:
        """Return what begins the end of an INSERT that updates a row which is there already."""
        return f"ON CONFLICT ({column}) DO UPDATE SET"

    def _read(self, text: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(text, parameters)
            return list(cursor.fetchall())

    def _write(self, text: str, parameters: Sequence[Any]) -> int:
        """Run a statement. Returns how many rows it has changed."""
        with self.connection.cursor() as cursor:
            cursor.execute(text, parameters)
            return int(cursor.rowcount)
