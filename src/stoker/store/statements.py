"""SQL that the ORM can't say: one statement per file in ``sql/``, chosen by capability."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from importlib.resources import files
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import connections, models, transaction
from django.db.models.expressions import RawSQL
from django.utils import timezone

from .clock import MICROSECONDS, instants_us
from .prepared import are_kept, array_literal, fetch_kept

ALWAYS_THE_SAME = frozenset({"now"})
"""Words that are the same each time a statement is sent to a database."""


def moves_rows_in_one_statement(connection: Any) -> bool:
    """Whether rows can be deleted from one table and inserted into another by a single statement
    over arrays. This is the only place that asks who the database is."""
    return bool(connection.vendor == "postgresql")


def takes_copies(connection: Any) -> bool:
    """Whether rows can be streamed into a table (COPY), and its driver does that. It passes by
    those who wrap what is executed, and may forbid it: where there are any, nothing is streamed."""
    can = moves_rows_in_one_statement(connection) and hasattr(connection.Database, "Copy")
    return can and not connection.execute_wrappers


def joins_a_list_in_json(connection: Any) -> bool:
    """MariaDB reads a small table from end to end rather than look up a list of keys, and a DELETE
    or UPDATE that does so waits for rows that others have locked. Joined to a list, it looks up."""
    return bool(connection.vendor == "mysql" and connection.features.has_native_uuid_field)


def looks_up_keys_in_json(connection: Any) -> bool:
    """Whether rows are found by their primary keys in a list of JSON: on MariaDB and MySQL, which
    else may read a whole table, and lock or wait for rows that are not in the list."""
    return bool(connection.vendor == "mysql")


def reads_a_list_in_json(connection: Any) -> bool:
    """SQLite can be given the keys as one parameter, of which it may take no more than a thousand.
    Elsewhere the ORM's own list is as good."""
    return bool(connection.vendor == "sqlite" and connection.features.supports_json_field)


def moves_a_list_in_json(connection: Any) -> bool:
    """Whether a list of rows, given as one parameter, can be moved by a statement for each table
    (SQLite since 3.38)."""
    is_new = bool(
        connection.vendor == "sqlite" and connection.Database.sqlite_version_info >= (3, 38)
    )
    return is_new and reads_a_list_in_json(connection)


def takes_lists(connection: Any) -> bool:
    """Whether it does one or the other."""
    return moves_rows_in_one_statement(connection) or moves_a_list_in_json(connection)


def fetch(
    connection: Any, name: str, parameters: dict[str, Any], **words: str
) -> list[tuple[Any, ...]]:
    """Run ``sql/<name>.sql`` and return its rows. Lists become arrays; words, where there are any,
    replace their names in braces."""
    if words.keys() <= ALWAYS_THE_SAME and are_kept(connection):
        return fetch_kept(connection, statement(name, **words), parameters)
    written = {
        key: array_literal(value) if isinstance(value, list) else value
        for key, value in parameters.items()
    }
    with connection.cursor() as cursor:
        cursor.execute(statement(name, **words), written)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows


def columns(rows: Sequence[tuple[Any, ...]], width: int) -> list[list[Any]]:
    """Rows turned into that many columns, as ``unnest`` takes them."""
    return (
        [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(width)]
    )


def hexes(keys: Iterable[UUID]) -> str:
    """Keys as SQLite reads them in a list."""
    return json.dumps([key.hex for key in keys])


def with_keys(rows: models.QuerySet[Any], keys: Collection[UUID]) -> models.QuerySet[Any]:
    """Those of these rows that have one of these primary keys. The keys go in one parameter where
    they can: hundreds take longer than their look-up."""
    connection = connections[rows.db]
    if moves_rows_in_one_statement(connection):  # a subquery, as claimed_ack.sql explains
        among = RawSQL("SELECT unnest((SELECT %s::uuid[]))", [array_literal(list(keys))])
    elif reads_a_list_in_json(connection):
        among = RawSQL("SELECT value FROM json_each(%s)", [hexes(keys)])
    else:
        return rows.filter(pk__in=keys)
    return rows.filter(pk__in=among)


def listed(connection: Any, keys: Collection[UUID]) -> tuple[str, list[Any]]:
    """What follows a column's name to say that it has one of these values, and its parameters."""
    if moves_rows_in_one_statement(connection):  # a subquery, as claimed_ack.sql explains
        return "= ANY ((SELECT %s::uuid[])::uuid[])", [array_literal(list(keys))]
    if reads_a_list_in_json(connection):
        return "IN (SELECT value FROM json_each(%s))", [hexes(keys)]
    native = connection.features.has_native_uuid_field
    marks = ", ".join(["%s"] * len(keys))
    return f"IN ({marks})", [str(key) if native else key.hex for key in keys]


def lock_by_key(
    rows: models.QuerySet[Any], keys: Collection[UUID], *names: str, waits: bool = True
) -> list[Any]:
    """The rows of these primary keys, locked in the order of the keys: two who want the same rows
    wait for each other in one direction only.

    Args:
        rows: of one table.
        keys: of the rows.
        names: of the fields that are wanted.
        waits: False: leave out those that others have locked.

    Returns:
        For each row something that has its fields of these names; of all names, if none is given.
    """
    connection = connections[rows.db]
    if looks_up_keys_in_json(connection):
        # MySQL refuses to lock the rows of the list itself, and MariaDB knows no other way.
        lock = "FOR UPDATE" if joins_a_list_in_json(connection) else "FOR UPDATE OF narrow"
        lock += "" if waits else " SKIP LOCKED"
        text = about("lock_by_key", rows, lock=lock)
        return list(rows.raw(text, [_as_json(connection, keys)]))
    rows = with_keys(rows, keys).order_by("pk")
    if connection.features.has_select_for_update:
        skips = not waits and connection.features.has_select_for_update_skip_locked
        rows = rows.select_for_update(skip_locked=skips)
    return list(rows.values_list(*names, named=True) if names else rows)


def delete_by_key(rows: models.QuerySet[Any], keys: Collection[UUID]) -> None:
    """Delete the rows of these primary keys, which the caller has locked."""
    connection = connections[rows.db]
    if not keys:
        return
    if looks_up_keys_in_json(connection):
        with connection.cursor() as cursor:
            cursor.execute(about("delete_by_key", rows), [_as_json(connection, keys)])
    else:
        with_keys(rows, keys).delete()


def update_by_key(rows: models.QuerySet[Any], keys: Collection[UUID], **values: Any) -> None:
    """Write these values to the rows of these primary keys, which the caller has locked. A value
    may be an ``F``: another field of the same row."""
    connection = connections[rows.db]
    if not keys:
        return
    if looks_up_keys_in_json(connection):
        assignments, prepared = _assignments(rows.model, values, connection)
        with connection.cursor() as cursor:
            statement = about("update_by_key", rows, assignments=assignments)
            cursor.execute(statement, [_as_json(connection, keys), *prepared])
    else:
        with_keys(rows, keys).update(**values)


def _assignments(
    model: type[models.Model], values: dict[str, Any], connection: Any
) -> tuple[str, list[Any]]:
    """The SET of an UPDATE, and its parameters."""
    written, prepared = [], []
    columns = {field.name: field for field in model._meta.concrete_fields}
    for name, value in values.items():
        field = columns[name]
        if isinstance(value, models.F):
            other = columns[value.name]  # type: ignore[attr-defined] # missing in the stubs
            written.append(f"narrow.{field.column} = narrow.{other.column}")
        else:
            written.append(f"narrow.{field.column} = %s")
            prepared.append(field.get_db_prep_save(value, connection))
    return ", ".join(written), prepared


def fetch_by_key(
    name: str, rows: models.QuerySet[Any], keys: Collection[UUID], **words: str
) -> list[tuple[Any, ...]]:
    """Run ``sql/<name>.sql``, which joins this table to a list of keys (MariaDB)."""
    connection = connections[rows.db]
    with connection.cursor() as cursor:
        cursor.execute(about(name, rows, **words), [_as_json(connection, keys)])
        found: list[tuple[Any, ...]] = list(cursor.fetchall())
        return found


def delete_returning_guards(
    rows: models.QuerySet[Any], keys: Collection[UUID], *, waits: bool = True
) -> dict[UUID, int]:
    """Delete rows of a narrow table and say which, with the number of each one's needs: what
    another transaction deletes at the same time is not ours."""
    with transaction.atomic(using=rows.db):
        locked = lock_by_key(rows, keys, "job_id", "guards", waits=waits)
        gone = {row.job_id: row.guards for row in locked}
        delete_by_key(rows, gone.keys())
        return gone


def about(name: str, rows: models.QuerySet[Any], **words: str) -> str:
    """``sql/<name>.sql`` with the table of these rows and its primary key put in."""
    table = connections[rows.db].ops.quote_name(rows.model._meta.db_table)
    key = connections[rows.db].ops.quote_name(rows.model._meta.pk.column)
    return statement(name, table=table, key=key, **words)


def _as_json(connection: Any, keys: Iterable[UUID]) -> str:
    """Return a list of keys, in their order, as the columns of the database have them."""
    is_native = connection.features.has_native_uuid_field
    return json.dumps([str(key) if is_native else key.hex for key in sorted(keys)])


def statement(name: str, **words: str) -> str:
    """What stands in ``sql/<name>.sql``, with these words put in for their names in braces."""
    text = _text(name)
    return text.format(**words) if words else text


@cache
def _text(name: str) -> str:
    """Without its comments: they are for who reads it here."""
    written = (files(__package__) / "sql" / f"{name}.sql").read_text(encoding="utf-8")
    lines = [line for line in written.splitlines() if not line.lstrip().startswith("--")]
    return "\n".join(lines)


def fetch_each(
    alias: str, name: str, keys: Collection[UUID], index: str = ""
) -> list[tuple[Any, ...]] | None:
    """Run ``sql/<name>.sql``, which finds something for each row of a table ``wanted (id)``.

    Args:
        alias: of the database.
        name: of the statement, in which ``{wanted}`` stands for that table, ``{join}`` for a join
            that begins with it, and ``{index}`` for what makes MariaDB use the index.
        keys: the rows of the table.
        index: the index that each row is looked up by.

    Returns:
        The rows found; None where no such table can be made, and each key needs a query of its own.
    """
    connection = connections[alias]
    if moves_rows_in_one_statement(connection):
        wanted = "unnest((SELECT %s::uuid[])) AS wanted (id)"
        words = {"wanted": wanted, "join": "JOIN", "index": ""}
        listed = array_literal(list(keys))
    elif joins_a_list_in_json(connection):
        wanted = "JSON_TABLE(%s, '$[*]' COLUMNS (id CHAR(36) PATH '$')) AS wanted"
        words = {"wanted": wanted, "join": "STRAIGHT_JOIN", "index": f"FORCE INDEX ({index})"}
        listed = json.dumps([str(key) for key in sorted(keys)])
    elif reads_a_list_in_json(connection):
        wanted = "(SELECT value AS id FROM json_each(%s)) AS wanted"
        words = {"wanted": wanted, "join": "CROSS JOIN", "index": ""}
        listed = json.dumps([key.hex for key in keys])
    else:
        return None
    with connection.cursor() as cursor:
        cursor.execute(statement(name, **words), [listed])
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows


def update_each(
    rows: models.QuerySet[Any], name: str, numbers: Mapping[UUID, int], **copied: str
) -> None:
    """Write to each of the rows of these primary keys, which the caller has locked, its own number.

    Args:
        rows: of one table.
        name: of the field for the number.
        numbers: primary key -> number.
        copied: other fields, each with the field of the same row from which it takes its value.
    """
    connection = connections[rows.db]
    if not numbers:
        return
    quote = connection.ops.quote_name
    more = "".join(f", {quote(to)} = {quote(name)}" for to, name in copied.items())
    words = {"column": quote(name), "more": more}
    with connection.cursor() as cursor:
        if moves_rows_in_one_statement(connection):
            arrays = [array_literal(list(numbers)), array_literal(list(numbers.values()))]
            cursor.execute(about("update_each", rows, **words), arrays)
        elif joins_a_list_in_json(connection):
            listed = json.dumps([(str(key), numbers[key]) for key in sorted(numbers)])
            cursor.execute(about("update_each_by_key", rows, **words), [listed])
        else:
            written = Written(connection)
            cursor.executemany(
                about("update_each_singly", rows, **words),
                [(number, written.id(key)) for key, number in numbers.items()],
            )


class Written:
    """How a driver is given values that it does not take as they are.

    Args:
        connection: to the database that they are for.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._has_uuids = bool(connection.features.has_native_uuid_field)
        self._texts: dict[int, str] = {}
        """Of whole seconds: rows that are written together mostly share theirs."""

    def id(self, value: UUID) -> UUID | str:
        return value if self._has_uuids else value.hex

    def moment(self, seconds: float | None) -> Any:
        """Seconds since 1970."""
        if seconds is None:
            return None
        return self.moments([seconds])[0]

    def moments(self, seconds: Sequence[float]) -> list[str]:
        """Many of them."""
        texts = self._texts
        parted = [divmod(us, MICROSECONDS) for us in instants_us(seconds)]
        for whole in {whole for whole, _ in parted} - texts.keys():
            zone = self._connection.timezone if settings.USE_TZ else timezone.get_default_timezone()
            naive = datetime.fromtimestamp(whole, zone).replace(tzinfo=None)
            texts[whole] = str(self._connection.ops.adapt_datetimefield_value(naive))
        return [f"{texts[whole]}.{us:06d}" if us else texts[whole] for whole, us in parted]

    def data(self, value: bytes | None) -> Any:
        return None if value is None else self._connection.Database.Binary(value)


def as_uuid(value: UUID | str) -> UUID:
    """What a driver gave for an id: those without UUIDs of their own give text."""
    return value if isinstance(value, UUID) else UUID(value)


def insert_rows(
    rows: models.QuerySet[Any], names: Sequence[str], values: Sequence[Sequence[Any]]
) -> None:
    """Insert rows into the table of this query set.

    Args:
        names: of the fields.
        values: of each row, as ``Written`` has them.
    """
    if not values:
        return
    connection = connections[rows.db]
    statement = insert_into(connection, rows.model, names)
    with connection.cursor() as cursor:
        if len(values) == 1:
            cursor.execute(statement, values[0])
        else:
            cursor.executemany(statement, values)


def insert_into(connection: Any, model: Any, names: Sequence[str]) -> str:
    """The statement that inserts a row, made once: that takes longer than to run it."""
    key = (connection.vendor, model, tuple(names))
    if key not in _inserts:
        quote = connection.ops.quote_name
        columns = ", ".join(quote(model._meta.get_field(name).column) for name in names)
        marks = ", ".join(["%s"] * len(names))
        _inserts[key] = f"INSERT INTO {quote(model._meta.db_table)} ({columns}) VALUES ({marks})"  # noqa: S608 - our own names
    return _inserts[key]


_inserts: dict[tuple[str, Any, tuple[str, ...]], str] = {}
