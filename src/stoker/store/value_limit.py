"""How large a value may be that the database is to keep.

MariaDB and MySQL take no statement larger than ``max_allowed_packet``, and close the connection of
who sends one. To the sender this looks like a server that has gone away.
"""

from __future__ import annotations

from django.db import DatabaseError, InterfaceError, connections

from stoker.exceptions import PackageTooLarge

LARGE_BYTES = 1 << 19
"""No server is set up to refuse less; so smaller values need no look at the limit."""
REST_BYTES = 1 << 16
"""Of a statement, beside its value."""
ESCAPED = b"\x00\n\r\x1a\"'\\"
"""Bytes that are sent as two."""


def refuse_too_large(alias: str, value: bytes) -> None:
    """Refuse a value that the database would not take. Needs a round trip on MariaDB and MySQL.

    Raises:
        PackageTooLarge: with the sizes in its sentence.
    """
    connection = connections[alias]
    if connection.vendor != "mysql":
        return
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT @@max_allowed_packet")
            (most_bytes,) = cursor.fetchone()
    except (DatabaseError, InterfaceError):
        return  # who records it will see
    sent_bytes = len(value) + sum(map(value.count, ESCAPED))
    if sent_bytes + REST_BYTES > most_bytes:
        raise PackageTooLarge(
            f"The value takes {sent_bytes:,} bytes in a statement, and max_allowed_packet of the "
            f"database {alias!r} allows {most_bytes:,}: keep it in a file or a table of your own "
            "and return where it is, or raise max_allowed_packet."
        )
