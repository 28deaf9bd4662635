"""Jobs and return values as pickles. A job consists of its head (id, task, queue, ...: plain
values) and of args, kwargs and metadata. Both are pickled separately."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from stoker.exceptions import NotSerializable, UnreadablePackage
from stoker.values.codec import Arguments, name_argument, with_article

PICKLE_PROTOCOL = 5
"""Supported by every Python that Stoker runs on, so that clusters may run different versions."""


_is_unpickled: ContextVar[bool] = ContextVar("stoker.is_unpickled", default=True)


def job_as_pickle(task: str, head: Sequence[Any], arguments: Arguments) -> bytes:
    """Return the job pickled, with the arguments pickled separately. Raises NotSerializable, naming
    the argument."""
    try:
        return _pickle([*head, _pickle(arguments)])
    except Exception as error:
        args, kwargs, _ = arguments
        for place, value in [*enumerate(args), *kwargs.items()]:
            _pickle_or_refuse(name_argument([place], task), value)
        raise NotSerializable(f"{task} cannot be pickled: {told(error)}.") from error


def value_as_pickle(value: Any) -> bytes:
    """Return a return value pickled. Raises NotSerializable."""
    return _pickle_or_refuse("The return value", value)


def job_from_pickle(body: bytes) -> list[Any]:
    """Unpickle head and arguments. The signature must have been verified; raises any error of
    unpickling."""
    *head, arguments = pickle.loads(body)  # noqa: S301 - signed
    return [*head, *pickle.loads(arguments)]  # noqa: S301 - signed


def head_from_pickle(body: bytes) -> list[Any]:
    """Unpickle only the head, which has plain values, so that no code of the project runs."""
    return list(pickle.loads(body)[:-1])  # noqa: S301 - signed


def arguments_of_pickle(body: bytes) -> bytes:
    """Return the arguments of a job still pickled, so that no code of the project runs."""
    return bytes(pickle.loads(body)[-1])  # noqa: S301 - signed


def value_from_pickle(body: bytes) -> Any:
    """Unpickle a return value. The signature must have been verified; raises any error of
    unpickling."""
    return pickle.loads(body)  # noqa: S301 - signed


@contextmanager
def nothing_unpickled() -> Iterator[None]:
    """Raise UnreadablePackage for pickled arguments and values inside the block.

    Unpickling runs code of the project. Pages that only show jobs must not do that.
    """
    token = _is_unpickled.set(False)
    try:
        yield
    finally:
        _is_unpickled.reset(token)


def refuse_to_unpickle(what: str) -> None:
    """Raise UnreadablePackage inside of ``nothing_unpickled``."""
    if not _is_unpickled.get():
        raise UnreadablePackage(
            f"The {what} is pickled, and pages do not unpickle. They can show it only if "
            'SERIALIZER is "json".'
        )


def _pickle(value: Any) -> bytes:
    return pickle.dumps(value, PICKLE_PROTOCOL)


def _pickle_or_refuse(owner: str, value: Any) -> bytes:
    try:
        return _pickle(value)
    except Exception as error:
        kind = with_article(type(value))
        raise NotSerializable(
            f"{owner} is {kind}, which cannot be pickled: {told(error)}."
        ) from error


def told(error: Exception) -> str:
    """Return the error in one line, without notes, even if its ``__str__`` raises."""
    formatted = traceback.TracebackException.from_exception(error)
    formatted.__notes__ = None
    last = list(formatted.format_exception_only())[-1]
    return last.strip().partition("\n")[0].rstrip(".")
