"""Commits: what is done after one, and that there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from django.db import connections, transaction


def after_commit(alias: str, call: Callable[[], object]) -> None:
    """Call this after the transaction that is open there, or now if none is. What it raises is
    logged and harms nobody: the commit has been made.

    Django names the function in its log by ``__qualname__``, and fails where it has none, as
    ``functools.partial`` does: the lambda has one.
    """
    transaction.on_commit(lambda: call(), using=alias, robust=True)  # noqa: PLW0108 - see above


@contextmanager
def autocommit(alias: str) -> Iterator[None]:
    """Also where the project commits by hand (``AUTOCOMMIT``): then nobody would commit this."""
    connection = connections[alias]
    if connection.in_atomic_block or connection.get_autocommit():
        yield
        return
    connection.close()  # with what a task before has not committed
    connection.set_autocommit(True)
    try:
        yield
    finally:
        connection.close()  # the next one is as the project wants it
