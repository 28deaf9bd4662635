"""Empties the tables after a test that committed: Django's own `flush` takes half a second.

It truncates every table, empty or not, and then creates all content types and permissions again.
"""

from django.db import connections, transaction

KEPT = {"django_migrations", "django_content_type", "auth_permission"}
"""Rows written by `migrate`, which no test changes."""


def empty_tables(alias: str) -> None:
    """Delete all rows that a test may have written."""
    connection = connections[alias]
    tables = sorted(set(connection.introspection.django_table_names()) - KEPT)
    quoted = [connection.ops.quote_name(table) for table in tables]
    # Foreign keys are checked when the transaction ends, or not at all.
    with (
        transaction.atomic(using=alias),
        connection.constraint_checks_disabled(),
        connection.cursor() as cursor,
    ):
        cursor.execute(f"SELECT {', '.join(f'EXISTS(SELECT 1 FROM {one})' for one in quoted)}")
        for table, has_rows in zip(quoted, cursor.fetchone(), strict=True):
            if has_rows:
                cursor.execute(f"DELETE FROM {table}")
