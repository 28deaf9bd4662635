"""Database errors in the contract's words, with what is to be done about them."""

from __future__ import annotations

from types import TracebackType

from django.db import InterfaceError, OperationalError, ProgrammingError

from stoker.exceptions import BrokerUnavailable, NotMigrated, PoolerRefused, RowsLocked
from stoker.models.conflicts import is_locked_out


class explained:  # noqa: N801 - used as a word of the language, like contextlib.suppress
    """Database errors of the block as Stoker's own, with a sentence that says what to do.

    Args:
        alias: of the database.
    """

    __slots__ = ("_alias",)

    def __init__(self, alias: str) -> None:
        self._alias = alias

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: object, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, OperationalError | InterfaceError | ProgrammingError):
            told = explain(error, self._alias)
            if told is not error:
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
    if "unsupported startup parameter" in lowered:
        return PoolerRefused(
            f"The database {alias!r} is behind a pooler like PgBouncer ({message}): set "
            f'"DISABLE_SERVER_SIDE_CURSORS": True in DATABASES["{alias}"].'
        )
    if is_locked_out(error):
        return RowsLocked(
            f"Another transaction holds rows of the database {alias!r} that are needed: {message}"
        )
    return BrokerUnavailable(f"The database {alias!r} did not carry this out: {message}")
