"""Database errors in the contract's words, with what is to be done about them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import InterfaceError, OperationalError, ProgrammingError

from stoker.exceptions import BrokerUnavailable, NotMigrated


@contextmanager
def explained(alias: str) -> Iterator[None]:
    """Database errors of the block as Stoker's own, with a sentence that says what to do."""
    try:
        yield
    except (OperationalError, InterfaceError, ProgrammingError) as error:
        told = explain(error, alias)
        if told is error:
            raise
        raise told from error


def explain(error: Exception, alias: str) -> Exception:
    """The error of Stoker's own that says what to do about this one; else the error itself."""
    message = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    lowered = message.lower()
    signs = ["no such table", "no such column", "unknown column"]
    if isinstance(error, ProgrammingError):  # else it is the database itself, or the role
        signs += ["does not exist", "doesn't exist"]
    if any(sign in lowered for sign in signs):
        return NotMigrated(
            f"Stoker's tables are not in the database {alias!r} yet ({message}). "
            f"Run: python manage.py migrate --database {alias}"
        )
    if isinstance(error, ProgrammingError):
        return error
    return BrokerUnavailable(f"The database {alias!r} did not carry this out: {message}")
