"""Types of values that requests and answers share."""

from __future__ import annotations

import base64
from datetime import datetime
from typing import Annotated, Any

from django.core import signing
from pydantic import AfterValidator, BeforeValidator, Field, types

from stoker.conf import Settings
from stoker.exceptions import ConfigurationError
from stoker.tasks.arguments import ShownCall
from stoker.tasks.decorator import own_backends
from stoker.values.marks import project_moment
from stoker.values.text import plain

from .problems import CallRefused

SALT = "stoker.api.cursor"


def _only_text(value: Any) -> Any:
    if not isinstance(value, str | datetime) or (isinstance(value, str) and value[4:5] != "-"):
        raise ValueError("write a time such as 2030-01-31T06:00:00Z")
    return value


Moment = Annotated[datetime, BeforeValidator(_only_text), AfterValidator(project_moment)]
"""ISO 8601. A moment without a zone is in the project's time zone."""

Backend = Annotated[
    str | None,
    Field(
        max_length=100,
        description="The name under TASKS. Default: `default`, or the only one that is Stoker's.",
    ),
]
Name = Annotated[str, Field(max_length=255)]
Why = Annotated[str, Field(max_length=255, description="Kept in the history.")]
# Not Field(strict=True): pydantic 2.9, 2.10 and early versions of 2.11 write the default of one
# field into a Field() that several fields share, and give it to the others.
Strict = types.Strict()


def unnamed_backend() -> str | None:
    """Return the backend for requests that name none. None: a request must name one."""
    known = own_backends()
    if "default" in known:
        return "default"
    return next(iter(known)) if len(known) == 1 else None


def settings_of(backend: str | None, *, lists_known: bool = True) -> Settings:
    """Return the settings of a backend.

    Args:
        lists_known: whether an error may list the names of all backends.

    Raises:
        CallRefused: No backend of Stoker's has this name, or the request must name one.
    """
    known = own_backends()
    if backend is None:
        backend = unnamed_backend() or "default"
    if backend not in known:
        names = f" Known: {', '.join(known) or 'none'}." if lists_known else ""
        raise CallRefused(404, f"Stoker has no backend {backend!r}.{names}")
    try:
        settings: Settings = known[backend].settings
    except ConfigurationError as error:
        raise CallRefused(
            503, f"The settings of the backend {backend!r} cannot be used."
        ) from error
    return settings


def cursor_of(mark: str | None) -> str | None:
    """Return a signed cursor for the next page. Clients can neither read nor create one."""
    if mark is None:
        return None
    return (
        base64.urlsafe_b64encode(signing.Signer(salt=SALT).sign(mark).encode()).decode().rstrip("=")
    )


def mark_of(cursor: str | None) -> str | None:
    """Return the mark of a page from a signed cursor.

    Raises:
        CallRefused: The signature of the cursor is wrong.
    """
    if cursor is None:
        return None
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        return signing.Signer(salt=SALT).unsign(base64.urlsafe_b64decode(padded.encode()).decode())
    except (signing.BadSignature, ValueError) as error:
        raise CallRefused(
            422, "after: this is not a valid mark: use `next` of the previous page."
        ) from error


def call_fields(call: ShownCall | None) -> dict[str, Any]:
    """Return the label and the arguments of a call; null = they cannot be read."""
    if call is None:
        return {"label": "", "args": None, "kwargs": None}
    return {"label": call.label, "args": plain(call.args), "kwargs": plain(call.kwargs)}
