"""Jobs and return values as bytes: JSON or pickle.

A value that cannot be serialised raises an error that says what to pass instead. A job is its head
(id, task, queue, ...: plain values), then args, kwargs and metadata.
"""

from __future__ import annotations

import io
import pickle
import traceback
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import is_dataclass
from enum import Enum
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from stoker.exceptions import NotSerializable, UnreadablePackage

from . import codec
from .codec import NotEncodable

PICKLE_PROTOCOL = 5
"""Supported by every Python that Stoker runs on, so that clusters may run different versions."""

MOST_STEPS = 5
"""Number of keys shown of the path to a refused value."""

_is_unpickled: ContextVar[bool] = ContextVar("stoker.is_unpickled", default=True)

Arguments = tuple[list[Any], dict[str, Any], Mapping[str, str]]


def job_as_json(task: str, head: Sequence[Any], arguments: Arguments) -> bytes:
    """Return the job as JSON. Raises NotSerializable, naming the argument."""
    if all(map(codec.is_plain, arguments)):
        with suppress(ValueError):  # found below, where it gets a name
            return codec.write([*head, *arguments])
    args, kwargs, metadata = arguments
    encoded = [
        _encode(args, "args", lambda steps: _argument(steps, task)),
        _encode(kwargs, "kwargs", lambda steps: _argument(steps, task)),
        _encode(metadata, "metadata", lambda _: f"The metadata of {task}"),
    ]
    try:
        return codec.write([*head, *encoded])
    except ValueError as error:
        raise NotSerializable(
            f"The options of {task} can't be written as JSON: {error}."
        ) from error


def value_as_json(value: Any) -> bytes:
    """Return a return value as JSON. Raises NotSerializable."""
    if codec.is_plain(value):
        try:
            return codec.write(value)
        except ValueError:
            pass  # found below, where it gets a name
    return codec.write(_encode(value, "result", lambda _: "The return value"))


def job_as_pickle(task: str, head: Sequence[Any], arguments: Arguments) -> bytes:
    """Return the job pickled, with the arguments pickled separately. Raises NotSerializable, naming
    the argument."""
    try:
        return _pickle([*head, _pickle(arguments)])
    except Exception as error:
        args, kwargs, _ = arguments
        for place, value in [*enumerate(args), *kwargs.items()]:
            _pickle_or_refuse(_argument([place], task), value)
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


def value_from_pickle(body: bytes) -> Any:
    """Unpickle a return value. The signature must have been verified; raises any error of
    unpickling."""
    return pickle.loads(body)  # noqa: S301 - signed


@contextmanager
def nothing_unpickled() -> Iterator[None]:
    """Raise UnreadablePackage for pickled arguments and values inside the block.

    Unpickling runs code of the project, which pages that only show jobs must not do.
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
            f"The {what} is pickled, and pages unpickle nothing: they show what SERIALIZER has "
            'written as "json".'
        )


def _pickle(value: Any) -> bytes:
    return pickle.dumps(value, PICKLE_PROTOCOL)


def _pickle_or_refuse(owner: str, value: Any) -> bytes:
    try:
        return _pickle(value)
    except Exception as error:
        kind = _with_article(type(value))
        raise NotSerializable(
            f"{owner} is {kind}, which cannot be pickled: {told(error)}."
        ) from error


def told(error: Exception) -> str:
    """Return the error in one line, even if its ``__str__`` raises."""
    return traceback.format_exception_only(error)[-1].strip().rstrip(".")


def _encode(value: Any, root: str, owner: Callable[[list[Any]], str]) -> Any:
    """Return the value in JSON's own types. Raises NotSerializable.

    ``owner`` receives the path to the refused value, returns the name of its owner, and removes the
    steps that the name covers.
    """
    try:
        return codec.encode(value)
    except NotEncodable as refusal:
        subject = owner(steps := refusal.path)
        if steps:
            subject += f", at {root}{_subscripts(refusal.path)},"
        raise NotSerializable(f"{subject} {refusal.problem or _describe(refusal)}.") from None


def _argument(steps: list[Any], task: str) -> str:
    """Name an argument by its position, counted from 1, or its keyword. Removes that step from the
    path."""
    if not steps:
        return f"The arguments of {task}"
    place = steps.pop(0)
    return f"Argument {place + 1 if isinstance(place, int) else repr(str(place))} of {task}"


def _subscripts(path: Sequence[Any]) -> str:
    """Return the path as Python subscripts, as in ``[1]["when"]``, shortened if it is long."""
    shown = "".join(f"[{_subscript(step)}]" for step in path[:MOST_STEPS])
    return shown + "..." if len(path) > MOST_STEPS else shown


def _subscript(step: Any) -> str:
    return f'"{step[:60]}"' if isinstance(step, str) else repr(step)[:60]


def _describe(refusal: NotEncodable) -> str:
    value = refusal.value
    kind = _with_article(type(value))
    return (
        f"is {kind}, which cannot be serialised as JSON: {_hint(value)}. "
        f"Unsupported type: {type(value)}"  # as Django says it
    )


def _with_article(kind: type) -> str:
    name = kind.__qualname__
    return f"an {name}" if name[:1].lower() in "aeiou" else f"a {name}"


def _hint(value: Any) -> str:
    """Return advice on what to pass instead of this value."""
    for kinds, hint in (*_hints_of_django(), *_HINTS):
        if isinstance(value, kinds):
            return hint
    if is_dataclass(value) and not isinstance(value, type):
        return "pass dataclasses.asdict(...) of it, and build it again inside the task"
    if hasattr(value, "tolist"):
        return "pass .tolist() of it"
    return (
        "pass plain values instead (str, int, list, dict, datetime, Decimal, UUID, bytes, ...), "
        'or set SERIALIZER to "pickle"'
    )


Kinds = type | tuple[type, ...]

_HINTS: tuple[tuple[Kinds, str], ...] = (
    (Set, "pass a list of it, such as sorted(...)"),
    (type, "pass its dotted path as a str"),
    (
        (FunctionType, MethodType, BuiltinFunctionType, partial),
        "call it first and pass what it returns, or pass its dotted path as a str",
    ),
    (Enum, "pass its .value"),
    (io.IOBase, "store the file, and pass its name, or its content as bytes"),
    (BaseException, "pass str(...) of it"),
    (Coroutine, "await it first and pass what it returns"),
    (Iterator, "pass list(...) of it"),
)


def _hints_of_django() -> tuple[tuple[Kinds, str], ...]:
    """Return hints for Django's types. Imported late, because models need the app registry."""
    from django.core.files import File
    from django.db.models import Manager, Model, QuerySet
    from django.http import HttpRequest
    from django.utils.datastructures import MultiValueDict
    from django.utils.functional import Promise

    return (
        (Model, "pass its primary key instead, and fetch it again inside the task"),
        (
            (QuerySet, Manager),
            'pass its primary keys, list(....values_list("pk", flat=True)), or what it filters by',
        ),
        (Promise, "pass str(...) of this lazy text"),
        (MultiValueDict, "pass .dict() of it, or dict(....lists()) to keep every value of a key"),
        (HttpRequest, "pass what the task needs of it, such as the user's primary key"),
        (File, "store the file, and pass its name, or its content as bytes"),
    )


def copied(value: Any) -> Any:
    """Copy plain containers, so that later changes by the caller do not affect a stored result."""
    kind = type(value)
    if kind is list:
        return [copied(item) for item in value]
    if kind is dict:
        return {key: copied(item) for key, item in value.items()}
    if kind is tuple:
        return tuple(copied(item) for item in value)
    return value
