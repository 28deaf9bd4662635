"""Lossless conversion of values to JSON and back. Types that JSON lacks are tagged.

::

    (1, 2)                   {"$tuple": [1, 2]}
    datetime                 {"$datetime": "2026-10-25T02:30:00+02:00"}
      in a zone, or folded   {"$datetime": ["2026-10-25T02:30:00.000000", 1, "Europe/Zurich"]}
    date, time, Decimal      {"$date": "2026-10-25"}, {"$time": "02:30:00"}, {"$decimal": "1.10"}
    timedelta                {"$timedelta": [days, seconds, microseconds]}
    UUID, bytes              {"$uuid": "<32 hex digits>"}, {"$bytes": "<base64>"}
    int of 600 digits        {"$int": "0x..."}
    {1: 2}, {"$tuple": 3}    {"$dict": [[1, 2]]}: for keys that aren't str, or look like a tag

Plain JSON values are written unchanged. A job is its head (id, task, queue, ...: plain values),
then args, kwargs and metadata. A value that cannot be written raises an error that says what to
pass instead.
"""

from __future__ import annotations

import io
import json
from base64 import b64decode
from binascii import b2a_base64
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from math import isfinite
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from django.utils.datastructures import MultiValueDict

from stoker.exceptions import NotSerializable

MOST_LEVELS = 100
"""Maximum nesting of values. With it, a worker can read everything that a web process can write."""

PLAIN_BITS = 2000
"""Longer integers are written in base 16, because Python may refuse to parse that many digits."""


class NotEncodable(Exception):
    """A value cannot be written as JSON. The path to it is collected while the exception
    propagates.

    Args:
        value: the refused value.
        problem: the predicate of a sentence about it; empty = its type is not supported.
    """

    def __init__(self, value: Any, problem: str = "") -> None:
        super().__init__(problem)
        self.value = value
        self.problem = problem
        self._steps: list[Any] = []

    def within(self, key: Any) -> None:
        """Add a key or index to the path: the one at which the refused value was found in its
        container."""
        self._steps.append(key)

    @property
    def path(self) -> list[Any]:
        """Keys and indexes from the outermost container to the refused value."""
        return self._steps[::-1]


class UnknownTag(LookupError):
    """Encoded JSON contains a tag that nothing in this process has registered."""


ATOMS = frozenset({str, int, float, bool, type(None)})
_STR = frozenset({str})


def is_plain(value: Any, levels: int = MOST_LEVELS) -> bool:
    """Return whether the value is plain JSON, so that it need not be encoded.

    This runs for the arguments of every job, and nearly all are plain, hence the inlined checks.
    NaN, infinity and very long integers are not detected here; ``write`` refuses them.
    """
    kind = type(value)
    if kind in ATOMS:
        return True
    if levels <= 0:
        return False
    if kind is list:
        if ATOMS.issuperset(map(type, value)):
            return True
        for item in value:
            if type(item) not in ATOMS and not is_plain(item, levels - 1):
                return False
        return True
    if kind is dict:
        for key, item in value.items():
            if type(key) is not str:
                return False
            if type(item) not in ATOMS and not is_plain(item, levels - 1):
                return False
        return not _looks_tagged(value)
    return False


def encode(value: Any) -> Any:
    """Return the value in JSON's own types.

    Raises:
        NotEncodable: a part of the value is not supported; the exception holds the path to it.
    """
    return _encode(value, MOST_LEVELS)


def write(encoded: Any) -> bytes:
    """Return JSON as bytes. Raises ValueError for NaN, infinity and very long integers."""
    # Lone surrogates are legal in a Python str, and are restored by ``read``.
    return "".join(_chunks(encoded, 0)).encode("utf-8", "surrogatepass")


def read(data: bytes) -> Any:
    """Decode a value that ``write`` wrote. May raise UnknownTag, and any error of the constructors
    of the types."""
    text = data.decode("utf-8", "surrogatepass")
    # Compact JSON has these three characters in a row only where a tagged value begins.
    decoder = _TAGGED if '{"$' in text else _UNTAGGED
    try:
        value, end = decoder.scan_once(text, 0)  # which is what raw_decode does
    except (ValueError, StopIteration):
        # It may be an integer with more digits than int() accepts. Other errors are raised again.
        value, end = _PATIENT.raw_decode(text)
    if end != len(text):
        raise ValueError(f"{len(text) - end} characters too many")
    return value


def register(tag: str, encoders: Mapping[type, Encoder], decode: Callable[[Any], Any]) -> None:
    """Add types that can be encoded. Their values are written under a tag.

    Args:
        tag: such as ``"$model"``. Each process that reads such values has to register it.
        encoders: type -> function of a value and the levels that may still be nested. It returns
            ``{tag: written}`` or raises NotEncodable. Subclasses of the type are included.
        decode: function of the written value; the values inside it are already decoded.
    """
    _ENCODERS.update(encoders)
    _DECODERS[tag] = decode


def _looks_tagged(value: Mapping[str, Any]) -> bool:
    return len(value) == 1 and next(iter(value))[:1] == "$"


def _encode(value: Any, levels: int) -> Any:
    encoder = _ENCODERS.get(type(value)) or _inherited(value)
    if encoder is None:
        raise NotEncodable(value)
    return encoder(value, levels)


def _inherited(value: Any) -> Encoder | None:
    """Return the encoder of a base class, for types such as SafeString, TextChoices, IntEnum and
    OrderedDict."""
    for base in type(value).__mro__[1:]:
        if base in _ENCODERS:
            return _ENCODERS[base]
    if isinstance(value, Mapping):
        return _encode_dict
    return _encode_list if isinstance(value, Sequence) else None


def _refuse(value: Any, _: int) -> Any:
    raise NotEncodable(value)


def _encode_int(value: int, _: int) -> Any:
    return value if value.bit_length() <= PLAIN_BITS else {"$int": hex(value)}


def _encode_float(value: float, _: int) -> float:
    if not isfinite(value):
        raise NotEncodable(
            value, f"is {value}, a number that JSON does not have: pass None, or a str of it"
        )
    return value


def _encode_list(value: Sequence[Any], levels: int) -> list[Any]:
    _check_depth(value, levels)
    encoded = []
    for index, item in enumerate(value):
        try:
            encoded.append(_encode(item, levels - 1))
        except NotEncodable as refusal:
            refusal.within(index)
            raise
    return encoded


def _encode_dict(value: Mapping[Any, Any], levels: int) -> Any:
    _check_depth(value, levels)
    pairs = []
    for key, item in value.items():
        try:
            pairs.append((_encode(key, levels - 1), _encode(item, levels - 1)))
        except NotEncodable as refusal:
            refusal.within(key)
            raise
    if not _STR.issuperset(type(key) for key, _ in pairs):
        return {"$dict": pairs}
    encoded = dict(pairs)
    if len(encoded) != len(pairs):
        raise NotEncodable(value, "would have two keys of the same text, of which JSON keeps one")
    return {"$dict": pairs} if _looks_tagged(encoded) else encoded


def _check_depth(value: Any, levels: int) -> None:
    if levels <= 0:
        raise NotEncodable(
            value,
            f"is nested more than {MOST_LEVELS} levels deep, or contains itself: "
            "pass something flatter",
        )


def _encode_datetime(value: datetime, _: int) -> Any:
    return {"$datetime": _clock(value, datetime.isoformat, len("2026-10-25T02:30:00.000000"))}


def _encode_time(value: time, _: int) -> Any:
    return {"$time": _clock(value, time.isoformat, len("02:30:00.000000"))}


def _clock(value: Any, isoformat: Callable[..., str], length: int) -> Any:
    """Encode a time with the name of its zone if it has one, else with its offset."""
    zone = value.tzinfo
    key = zone.key if isinstance(zone, ZoneInfo) else None
    if key is not None:
        return [isoformat(value, timespec="microseconds")[:length], value.fold, key]
    if zone is not None and value.utcoffset() is None:
        raise NotEncodable(
            value, f"has the time zone {zone!r}, which gives no offset: use zoneinfo.ZoneInfo"
        )
    return [isoformat(value), value.fold] if value.fold else isoformat(value)


def _decode_clock(kind: type[Any]) -> Callable[[Any], Any]:
    def decode(written: Any) -> Any:
        if isinstance(written, str):
            return kind.fromisoformat(written)
        text, fold, *key = written
        value = kind.fromisoformat(text).replace(fold=fold)
        return value.replace(tzinfo=ZoneInfo(key[0])) if key else value

    return decode


def _decode_tagged(value: dict[str, Any]) -> Any:
    """Decode one JSON object. ``json`` calls this for every object, the innermost first."""
    if len(value) == 1:
        for tag, written in value.items():
            if tag[:1] == "$":
                if tag not in _DECODERS:
                    raise UnknownTag(f"the tag {tag} is unknown here")
                return _DECODERS[tag](written)
    return value


def _patient_int(digits: str) -> int:
    """Parse an integer of any length. ``int()`` limits the number of digits, so the digits are
    split into parts that it accepts."""
    if digits.startswith("-"):
        return -_patient_int(digits[1:])
    if len(digits) <= 600:
        return int(digits)
    half = len(digits) // 2
    return int(_patient_int(digits[:-half]) * 10**half + _patient_int(digits[-half:]))


Encoder = Callable[[Any, int], Any]

_ENCODERS: dict[type, Encoder] = {
    str: lambda value, _: str.__str__(value),
    int: _encode_int,
    float: _encode_float,
    bool: lambda value, _: value,
    type(None): lambda value, _: value,
    list: _encode_list,
    dict: _encode_dict,
    # Its items are only the last value of each key, so the other values would be lost.
    MultiValueDict: _refuse,
    tuple: lambda value, levels: {"$tuple": _encode_list(value, levels)},
    datetime: _encode_datetime,
    date: lambda value, _: {"$date": date.isoformat(value)},
    time: _encode_time,
    timedelta: lambda value, _: {"$timedelta": [value.days, value.seconds, value.microseconds]},
    Decimal: lambda value, _: {"$decimal": Decimal.__str__(value)},
    UUID: lambda value, _: {"$uuid": value.hex},
    **dict.fromkeys(
        (bytes, bytearray, memoryview),
        lambda value, _: {"$bytes": b2a_base64(value, newline=False).decode("ascii")},
    ),
}

_DECODERS: dict[str, Callable[[Any], Any]] = {
    "$tuple": tuple,
    "$dict": dict,
    "$int": lambda written: int(written, 16),
    "$datetime": _decode_clock(datetime),
    "$date": date.fromisoformat,
    "$time": _decode_clock(time),
    "$timedelta": lambda written: timedelta(*written),
    "$decimal": Decimal,
    "$uuid": lambda written: UUID(int=int(written, 16)),
    "$bytes": b64decode,
}

# Depth is limited above, so the encoder need not look for circles.
_ENCODER = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, allow_nan=False, separators=(",", ":")
)
_chunks: Any = _ENCODER.iterencode
with suppress(AttributeError, TypeError):  # create CPython's C encoder once and not per value
    _made_of = (None, _ENCODER.default, json.encoder.encode_basestring, None, ":", ",")
    _chunks = json.encoder.c_make_encoder(*_made_of, False, False, False)  # type: ignore[attr-defined] # missing in the stubs
_UNTAGGED: Any = json.JSONDecoder()
_TAGGED: Any = json.JSONDecoder(object_hook=_decode_tagged)
_PATIENT = json.JSONDecoder(object_hook=_decode_tagged, parse_int=_patient_int)


MOST_STEPS = 5
"""Maximum number of keys that are shown of the path to a refused value."""

RESULT = "result"
"""Name of a return value in the path to a refused value."""

Arguments = tuple[list[Any], dict[str, Any], Mapping[str, str]]


def job_as_json(task: str, head: Sequence[Any], arguments: Arguments) -> bytes:
    """Return the job as JSON. Raises NotSerializable, naming the argument."""
    if all(map(is_plain, arguments)):
        with suppress(ValueError):  # found below, where it gets a name
            return write([*head, *arguments])
    args, kwargs, metadata = arguments
    encoded = [
        _encode_or_name(args, "args", lambda steps: name_argument(steps, task)),
        _encode_or_name(kwargs, "kwargs", lambda steps: name_argument(steps, task)),
        _encode_or_name(metadata, "metadata", lambda _: f"The metadata of {task}"),
    ]
    try:
        return write([*head, *encoded])
    except ValueError as error:
        raise NotSerializable(
            f"The options of {task} can't be written as JSON: {error}."
        ) from error


def value_as_json(value: Any) -> bytes:
    """Return a return value as JSON. Raises NotSerializable."""
    if is_plain(value):
        try:
            return write(value)
        except ValueError:
            pass  # found below, where it gets a name
    return write(_encode_or_name(value, RESULT, lambda _: "The return value"))


def _encode_or_name(value: Any, root: str, owner: Callable[[list[Any]], str]) -> Any:
    """Return the value in JSON's own types. Raises NotSerializable.

    ``owner`` receives the path to the refused value. It returns a name for the argument or value
    that contains it, and removes the steps of the path that the name includes.
    """
    try:
        return encode(value)
    except NotEncodable as refusal:
        subject = owner(steps := refusal.path)
        if steps:
            subject += f", at {root}{_subscripts(refusal.path)},"
        problem = refusal.problem or _describe(refusal)
        if root == RESULT:
            problem = problem.replace("pass ", "return ").replace(" inside the task", "")
        raise NotSerializable(f"{subject} {problem}.") from None


def name_argument(steps: list[Any], task: str) -> str:
    """Name an argument for an error message, by its position, counted from 1, or its keyword.

    Args:
        steps: the path to a value in the arguments. Its first step, the argument, is removed.
        task: the dotted path of the task.
    """
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
    kind = with_article(type(value))
    return (
        f"is {kind}, which cannot be serialised as JSON: {_hint(value)}. "
        f"Unsupported type: {type(value)}"  # as Django says it
    )


def with_article(kind: type) -> str:
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
