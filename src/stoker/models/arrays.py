"""A column as an array literal of PostgreSQL, ``{1,2,NULL}``: one string, which drivers pass on as
it is. The arrays they make themselves, item by item, cost more than the statement around them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any
from uuid import UUID


def array_literal(values: Sequence[Any]) -> str:
    """The array as text, for a parameter with a cast: ``%(ids)s::uuid[]``.

    Args:
        values: numbers, or str, bytes, UUID; all of one kind, or None.
    """
    sample = next((value for value in values if value is not None), None)
    write = next((writer for kind, writer in _WRITERS if isinstance(sample, kind)), str)
    if isinstance(sample, str):  # the same few again and again: names of queues, of workers
        written = {value: write(value) for value in set(values) if value is not None}
        items = [written.get(value, "NULL") for value in values]
    else:
        items = ["NULL" if value is None else write(value) for value in values]
    return list_literal(items)


def list_literal(items: Iterable[str]) -> str:
    """The array of what is written already. What has neither commas, braces nor quotes in it stands
    as it is. An object of JSON looks the same."""
    return "{" + ",".join(items) + "}"


def _write_text(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _write_bytes(value: bytes) -> str:
    return f'"\\\\x{value.hex()}"'


def _write_uuid(value: UUID) -> str:
    return value.hex


_WRITERS: tuple[tuple[type, Callable[[Any], str]], ...] = (
    (str, _write_text),
    (bytes, _write_bytes),
    (UUID, _write_uuid),
)
"""Type -> how one item is written; numbers stand as they are."""
