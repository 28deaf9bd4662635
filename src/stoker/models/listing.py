"""Statements about each row of a list of keys, whatever the database reads such a list from."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any
from uuid import UUID

from django.db import connections, models

from .arrays import array_literal
from .rows import Written
from .statements import (
    about,
    joins_a_list_in_json,
    moves_rows_in_one_statement,
    reads_a_list_in_json,
    statement,
)


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
