"""The guards of one job, with the keys that its arguments produce.

A key is a UUID of version 8 (RFC 9562): 121 bits of a SHA-256 over the kind of guard, the kind of
key, its owner ("" = shared by all tasks) and its text. The parts are separated by NUL, which only
the last one may contain, so that no two keys are confused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from inspect import BoundArguments, Parameter, Signature
from typing import Any, NamedTuple
from uuid import UUID

from stoker.exceptions import InvalidTaskOption, NotSerializable, as_seconds
from stoker.models.need import Need, NewNeed
from stoker.tasks.backoff import Seconds
from stoker.tasks.guards import Limit, Lock, Rate, Unique, names_in, signature_of_call, wanted_by
from stoker.tasks.options import is_guarded
from stoker.values import codec
from stoker.values.codec import NotEncodable

LONGEST_NAME = 255
FOLLOWERS = ("replace", "postpone", "after")
"""Conflict policies that may enqueue a job behind the running one with the same key."""


class UniqueClaim(NamedTuple):
    """The unique key that an enqueue asks for."""

    key_id: UUID
    name: str
    """Readable form of the key, for screens and errors."""
    until: str
    """"finished" or "started"."""
    within_us: int
    """Minimum time that the key stays taken, in microseconds; 0 = none."""
    on_conflict: str
    delay_us: int
    longest_wait_us: int | None
    blocks_overlap: bool
    """Whether its jobs are also in a sequence with this key (see ``needs_of``)."""


def needs_of(task: Any, args: Iterable[Any], kwargs: Mapping[str, Any]) -> tuple[NewNeed, ...]:
    """Return the needs of a job with these arguments: locks, limits, rates and sequence.

    Accepts any task; a plain one of Django has no needs. If the arguments give two needs the same
    key, the stricter one is returned. The sequence of a unique key comes first.

    Raises:
        InvalidTaskOption: a key or weight is invalid.
        NotSerializable: the arguments cannot be turned into a key.
        Exception: any error of the task's own callables, with a note.
    """
    if not is_guarded(task):
        return ()
    needs: dict[UUID, NewNeed] = {}
    for need in _needs(Arguments(task, args, kwargs)):
        other = needs.get(need.key_id)
        needs[need.key_id] = need if other is None else _stricter(other, need)
    return tuple(needs.values())


def unique_of(task: Any, args: Iterable[Any], kwargs: Mapping[str, Any]) -> UniqueClaim | None:
    """Return the unique key of a job with these arguments, or None if it has none.

    Raises: as ``needs_of``.
    """
    unique: Unique | None = getattr(task, "unique", None)
    if unique is None:
        return None
    key = _unique_key(Arguments(task, args, kwargs), unique)
    if key is None:
        return None
    return UniqueClaim(
        key_id=key.id("unique"),
        name=key.name("unique"),
        until=unique.until,
        within_us=_microseconds(unique.within),
        on_conflict=unique.on_conflict,
        delay_us=_microseconds(unique.delay),
        longest_wait_us=None if unique.longest_wait is None else _microseconds(unique.longest_wait),
        blocks_overlap=_blocks_overlap(unique),
    )


def id_and_name(kind: str, key: Any) -> tuple[UUID, str]:
    """Return the id and the name of a guard key.

    Args:
        kind: the kind of guard.
        key: a text, or a task whose guard has no key.
    """
    made = _text_key(key) if isinstance(key, str) else _task_key(key.module_path)
    return made.id(kind), made.name(kind)


def ids_of_unique_text(text: str, tasks: Iterable[str]) -> list[UUID]:
    """Return the ids that a text can have as a unique key: the shared one, and one for each task.

    Args:
        text: as a task's ``Unique`` builds it from the arguments.
        tasks: dotted paths.
    """
    key = _text_key(text)
    return [key._replace(owner=owner).id("unique") for owner in ("", *tasks)]


def _needs(call: Arguments) -> Iterator[NewNeed]:
    task = call.task
    if task.unique is not None and _blocks_overlap(task.unique):
        key = _unique_key(call, task.unique)
        if key is not None:
            # A sequence, so that no later job runs between two attempts of the first job.
            yield NewNeed(key.id("overlap"), Need.Kind.SEQUENCE.value, key.name("unique"))
    if task.lock is not None:
        yield from _place(call, "lock", task.lock, 1)
    for limit in task.limit or ():
        yield from _place(call, "limit", limit, limit.n)
    for rate in task.rate or ():
        yield from _starts(call, rate)
    if task.sequence is not None:
        key = _key(call, "sequence", task.sequence.key)
        if key is not None:
            halts = task.sequence.after_failure == "halt"
            kind = Need.Kind.SEQUENCE.value
            yield NewNeed(key.id(kind), kind, key.name(kind), halts=halts)


def _place(call: Arguments, kind: str, guard: Lock | Limit, places: int) -> Iterator[NewNeed]:
    key = _key(call, kind, guard.key)
    if key is not None:
        yield NewNeed(
            key.id(kind),
            kind,
            key.name(kind),
            places=places,
            on_busy=guard.on_busy,
            retry_us=_microseconds(guard.retry_delay) if guard.on_busy == "retry" else 0,
        )


def _starts(call: Arguments, rate: Rate) -> Iterator[NewNeed]:
    """Yield the need of a rate. Rates of different periods have separate keys, because their counts
    cannot be compared."""
    key = _key(call, "rate", rate.key)
    if key is None:
        return
    weight = rate.weight
    if callable(weight):
        with _told(call, "rate", "weight"):
            weight = call.give_to(weight)
            rate.check_weight(weight)
    yield NewNeed(
        key.id(f"rate {rate.window}"),
        Need.Kind.RATE.value,
        key.name("rate", f" per {rate.period_seconds:g} s"),
        places=rate.starts,
        weight=weight,
        period_us=_microseconds(rate.period_seconds),
        burst=rate.burst or 0,
    )


def _stricter(one: NewNeed, other: NewNeed) -> NewNeed:
    return one._replace(
        places=min(one.places, other.places),
        burst=min(one.burst, other.burst),
        weight=max(one.weight, other.weight),
    )


def _blocks_overlap(unique: Unique) -> bool:
    """Return whether later jobs must wait for the running one. With ``until="started"`` they need
    not."""
    return unique.on_conflict in FOLLOWERS and unique.until == "finished"


class _GuardKey(NamedTuple):
    made_of: str
    """Kind of the text: "text", "values", "arguments" or "task"."""
    owner: str
    """The task that the key belongs to; "" = shared by all tasks."""
    text: str
    shown: str

    def id(self, kind: str) -> UUID:
        return _hashed(f"{kind}\0{self.made_of}\0{self.owner}\0{self.text}")

    def name(self, kind: str, more: str = "") -> str:
        """Return the key as a text that every database accepts."""
        shown = self.shown[: LONGEST_NAME - len(kind) - len(more) - 1]
        if not (shown.isascii() and shown.isprintable()):
            shown = "".join(
                letter if letter.isprintable() and letter <= "\uffff" else "?" for letter in shown
            )
        return f"{kind} {shown}{more}"


def _unique_key(call: Arguments, unique: Unique) -> _GuardKey | None:
    owner = call.task.module_path
    if unique.key is None:
        return _call_key(call)
    key = _key(call, "unique", unique.key)
    return key if key is None or unique.scope == "global" else key._replace(owner=owner)


def _call_key(call: Arguments) -> _GuardKey:
    """Return the key of the task with all its arguments."""
    path, text = call.task.module_path, call.written()
    return _GuardKey("arguments", path, text, f"{path} {_hashed(text).hex[:8]}")


def _key(call: Arguments, option: str, key: Any) -> _GuardKey | None:
    """Return the key of this option for this job, or None if the job has no such guard."""
    path = call.task.module_path
    if key is None:
        return _call_key(call) if option == "lock" else _task_key(path)
    if isinstance(key, str):
        arguments = call.by_name if names_in(key) else {}
        with _told(call, option, "key"):
            return _text_key(key.format_map(arguments))
    with _told(call, option, "key"):
        value = call.give_to(key)
    if value is None:
        return None
    if isinstance(value, str):
        return _text_key(str.__str__(value))
    if isinstance(value, UUID):
        return _text_key(str(value))
    if isinstance(value, int) and not isinstance(value, bool):
        return _text_key(int.__repr__(value))
    if isinstance(value, tuple):
        return _values_key(call, option, value)
    raise InvalidTaskOption(
        f"{option}: the key of {path} returned {value!r}. Return a str, an int, a UUID, a tuple of "
        "these, or None for a job without this guard."
    )


def _task_key(path: str) -> _GuardKey:
    return _GuardKey("task", path, "", path)


def _text_key(text: str) -> _GuardKey:
    return _GuardKey("text", "", text, text)


def _values_key(call: Arguments, option: str, values: tuple[Any, ...]) -> _GuardKey:
    try:
        text = write(codec.encode(values))
    except NotEncodable as refusal:
        raise NotSerializable(
            f"{option}: what the key of {call.task.module_path} returned {problem_of(refusal)}."
        ) from None
    return _GuardKey("values", "", text, ", ".join(map(str, values)))


@contextmanager
def _told(call: Arguments, option: str, part: str) -> Iterator[None]:
    """Add a note to errors of the project's own code. The note names the option that called it."""
    try:
        yield
    except Exception as error:
        error.add_note(
            f"Raised by the {part} of {option}, an option of {call.task.module_path}, for a job "
            "that was to be enqueued."
        )
        raise


def _hashed(text: str) -> UUID:
    """Hash a text to a UUID of version 8.

    MariaDB refuses UUIDs without a version, sorts versions up to 5 in its own order, and refuses
    version 8 with a ninth byte of 0x80; hence the last bit of that byte is set.
    """
    digest = sha256(text.encode("utf-8", "surrogatepass")).digest()
    number = int.from_bytes(digest[:16], "big") & ~(0xF << 76 | 0b11 << 62)
    return UUID(int=number | 8 << 76 | 0b10 << 62 | 1 << 56)


def _microseconds(delay: Seconds | None) -> int:
    return 0 if delay is None else round(as_seconds(delay) * 1_000_000)


class Arguments:
    """The arguments of a call, which are bound to the function's parameters on first use."""

    __slots__ = ("_args", "_bound", "_kwargs", "task")

    def __init__(self, task: Any, args: Iterable[Any], kwargs: Mapping[str, Any]) -> None:
        self.task = task
        self._args = tuple(args)
        self._kwargs = kwargs
        self._bound: BoundArguments | None = None

    @property
    def by_name(self) -> dict[str, Any]:
        """Parameter -> value, defaults included, in the order of the function.

        Raises:
            TypeError: the function does not take these arguments.
        """
        return self._all.arguments

    def give_to(self, function: Callable[..., Any]) -> Any:
        """Call a function with the arguments that it names, or with all if it takes ``*args`` or
        ``**kwargs``.

        Defaults are included, so the call does not depend on how the job was enqueued.
        """
        wanted = wanted_by(function)
        if wanted is None:
            return function(*self._all.args, **self._all.kwargs)
        given = self.by_name
        if not wanted.takes_rest:
            given = {name: given[name] for name in wanted.names if name in given}
        return function(**given)

    @property
    def _all(self) -> BoundArguments:
        if self._bound is None:
            self._bound = self._signature.bind(*self._args, **self._kwargs)
            self._bound.apply_defaults()
        return self._bound

    def written(self) -> str:
        """Return a text that is the same for equal calls and differs for all others.

        Values that are serialised differently differ: 1, 1.0, True and "1"; a list and a tuple; the
        same moment in two time zones.

        Raises:
            NotSerializable: an argument cannot be written; the message names it.
        """
        return write([self._one(name, value) for name, value in self.by_name.items()])

    def _one(self, name: str, value: Any) -> list[Any]:
        try:
            return [name, codec.encode(value)]
        except NotEncodable as refusal:
            if value is self._signature.parameters[name].default:
                return [name]
            owner = f"Argument {name!r} of {self.task.module_path}"
            raise NotSerializable(f"{owner} {problem_of(refusal)}.") from None

    @property
    def _signature(self) -> Signature:
        function = self.task.func
        return signature_of_call(function, self.task.takes_context) or ANYTHING


ANYTHING = Signature(
    [Parameter("args", Parameter.VAR_POSITIONAL), Parameter("kwargs", Parameter.VAR_KEYWORD)]
)
"""Signature for functions without a readable one."""


def write(encoded: Any) -> str:
    """Return encoded values as text, independent of the order of dicts."""
    text = _to_text(encoded)
    return _to_text(_sorted(encoded)) if '{"$dict":' in text else text


def problem_of(refusal: NotEncodable) -> str:
    """Return the predicate of a sentence about a value that cannot be part of a key."""
    if refusal.problem:
        return refusal.problem
    kind = type(refusal.value).__qualname__
    return (
        f"has a value of type {kind}, which cannot be part of a key: pass plain values, or give "
        "the guard a key that does not use it"
    )


def _sorted(encoded: Any) -> Any:
    """Sort the pairs of dicts that are encoded as lists of pairs."""
    if isinstance(encoded, dict):
        values = {key: _sorted(value) for key, value in encoded.items()}
        if len(values) == 1 and "$dict" in values:
            return {"$dict": sorted(values["$dict"], key=_to_text)}
        return values
    if isinstance(encoded, list | tuple):
        return [_sorted(item) for item in encoded]
    return encoded


_to_text = json.JSONEncoder(
    ensure_ascii=False,
    check_circular=False,
    allow_nan=False,
    sort_keys=True,
    separators=(",", ":"),
).encode
