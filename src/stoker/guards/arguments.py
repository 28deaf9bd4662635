"""The arguments of one job, as keys are made of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from inspect import BoundArguments, Parameter, Signature
from typing import Any

from stoker import codec
from stoker.codec import Refusal
from stoker.exceptions import NotSerializable
from stoker.key_templates import signature_of_call, wanted_by


class Arguments:
    """How a task was called. They are bound to the function's parameters when first asked for."""

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
            TypeError: the function does not take these.
        """
        return self._all.arguments

    def give_to(self, function: Callable[..., Any]) -> Any:
        """Call a function with those of the arguments that it names, defaults included; with all of
        them if it takes whatever comes. However the job was enqueued, it is called the same way."""
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
        """The same text for the same call, however it was written, and another for any other.

        What travels differently is different: 1, 1.0, True and "1"; a list and a tuple; one moment
        in two zones.

        Raises:
            NotSerializable: no text can be made of an argument, which is named.
        """
        return write([self._one(name, value) for name, value in self.by_name.items()])

    def _one(self, name: str, value: Any) -> list[Any]:
        try:
            return [name, codec.encode(value)]
        except Refusal as refusal:
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
"""Stands in for the signature of a function whose own can't be had."""


def write(encoded: Any) -> str:
    """What ``codec.encode`` gave, as text that does not depend on the order of dicts."""
    text = _to_text(encoded)
    return _to_text(_sorted(encoded)) if '{"$dict":' in text else text


def problem_of(refusal: Refusal) -> str:
    """The predicate of a sentence about what cannot be part of a key."""
    if refusal.problem:
        return refusal.problem
    kind = type(refusal.value).__qualname__
    return (
        f"has a value of type {kind}, of which no key can be made: pass plain values, or give the "
        "guard a key that does without it"
    )


def _sorted(encoded: Any) -> Any:
    """With the pairs of each dict that had to be written as such in the order of their text."""
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
