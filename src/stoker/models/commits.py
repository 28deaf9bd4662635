"""What is done after a commit."""

from __future__ import annotations

from collections.abc import Callable

from django.db import transaction


def after_commit(alias: str, call: Callable[[], object]) -> None:
    """Call this after the transaction that is open there, or now if none is. What it raises is
    logged and harms nobody: the commit has been made.

    Django names the function in its log by ``__qualname__``, and fails where it has none, as
    ``functools.partial`` does: the lambda has one.
    """
    transaction.on_commit(lambda: call(), using=alias, robust=True)  # noqa: PLW0108 - see above
