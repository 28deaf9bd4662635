"""Convert errors to text, once, in the process where they happen."""

from __future__ import annotations

import hashlib
import traceback
from dataclasses import dataclass
from types import TracebackType

from stoker.compat import InvalidTask
from stoker.exceptions import StokerError

MESSAGE_LIMIT = 10_000
TRACEBACK_LIMIT = 64_000


def fault_of(error: BaseException) -> Fault:
    """Convert an error to a fault. Never raises, even if the error's ``__str__`` does."""
    kind = type(error)
    try:
        trace = "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001 - formatting calls the user's __str__, too
        trace = "".join(traceback.format_tb(error.__traceback__)) + f"{kind.__qualname__}\n"
    return Fault(
        exception_class=f"{kind.__module__}.{kind.__qualname__}"[:255],
        message=storable(_message_of(error), MESSAGE_LIMIT),
        traceback=storable(trace, TRACEBACK_LIMIT),
        location=_location(error.__traceback__),
    )


def _message_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:  # noqa: BLE001 - a user's __str__ may raise anything
        return f"<the error's text could not be read: {type(broken).__name__}>"


def plain_fault(error_class: type[BaseException], message: str) -> Fault:
    """Return a fault for a failure that the cluster itself has detected."""
    name = f"{error_class.__module__}.{error_class.__qualname__}"
    told = storable(message, MESSAGE_LIMIT)
    return Fault(exception_class=name, message=told, traceback=f"{name}: {told}\n")


def fingerprint(fault: Fault) -> str:
    """Return a hash of the error's class and of its location."""
    told = f"{fault.exception_class}\n{fault.location}"
    return hashlib.sha256(told.encode("utf-8", "replace")).hexdigest()[:32]


def storable(text: str, limit: int) -> str:
    """Return the text without NUL and lone surrogates, which not every database accepts. If it is
    longer than ``limit``, leave out the middle."""
    clean = text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")
    if len(clean) <= limit:
        return clean
    half = limit // 2
    return f"{clean[:half]}\n... ({len(clean) - limit} characters left out) ...\n{clean[-half:]}"


def _location(trace: TracebackType | None) -> str:
    """Return ``module:function`` of the innermost frame."""
    if trace is None:
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    frame = trace.tb_frame
    return f"{frame.f_globals.get('__name__', '?')}:{frame.f_code.co_qualname}"[:255]


@dataclass(frozen=True, slots=True)
class Fault:
    """A stored error. It has only names and texts, and so can be read without the project's
    code."""

    exception_class: str
    """Dotted path of the exception's class."""
    message: str
    traceback: str
    location: str = ""
    """``module:function`` that raised the error. The fingerprint is a hash of this and the
    class."""

    @property
    def in_one_line(self) -> str:
        return f"{self.exception_class}: {self.message.partition(chr(10))[0]}"


def reason_of(error: Exception) -> str:
    """Return one line that says why a call was refused: the message of an error of Stoker or of
    wrong arguments. For any other error, add its class and its notes."""
    kind, notes = type(error).__name__, getattr(error, "__notes__", ())
    lines = _message_of(error).strip().splitlines() or [kind]
    if not notes and isinstance(error, StokerError | InvalidTask | TypeError | ValueError):
        return lines[0]
    return " ".join([f"{kind}: {lines[0].removesuffix('.')}{'.' if notes else ''}", *notes])
