"""Whether a call can be made: its arguments fit the function, its guards can be kept. Some calls
are given their first argument later, by the job before them: nobody knows yet what it will be."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NoReturn

from stoker.compat import InvalidTask
from stoker.exceptions import InvalidTaskOption, NotSerializable
from stoker.guards.keys import needs_of
from stoker.models.need import NewNeed
from stoker.options import is_guarded


class NotYetKnown:
    """Stands for what a call will be given. No key can be made of it."""

    def __getattr__(self, name: str) -> NoReturn:
        raise _Asked

    def __str__(self) -> str:
        raise _Asked

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        raise _Asked


class _Asked(Exception):
    """Somebody wants to know what is not known yet."""


NOT_YET_KNOWN = NotYetKnown()


def calls_of(args: Sequence[Any], each: str, receives: str) -> Iterator[tuple[Any, ...]]:
    """The positional arguments of each call that a job makes."""
    if not each:
        yield (NOT_YET_KNOWN, *args) if receives else tuple(args)
        return
    for item in args[0]:
        yield tuple(item) if each == "starmap" else (item,)


def refuse_wrong_arguments(task: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raises TypeError here, where the mistake is, and not in a worker."""
    context = (None,) if task.takes_context else ()
    signature = _signature(task.func)
    if signature is None or _fits(task.func, len(context) + len(args), tuple(kwargs)):
        return
    try:
        signature.bind(*context, *args, **kwargs)
    except TypeError as error:
        given = bool(args) and args[0] is NOT_YET_KNOWN
        hint = " (the first is what it is given by the step before it, or by the job)"
        raise TypeError(
            f"{task.module_path}{signature} does not take these arguments"
            f"{hint if given else ''}: {error}."
        ) from None


def refuse_unusual(task: Any, each: str, what: str) -> None:
    """Raises InvalidTaskOption for guards that such a job cannot have."""
    if getattr(task, "unique", None) is not None:
        raise InvalidTaskOption(
            f"{task.module_path} is unique, and {what} is always a job of its own: write "
            f"{task.name}.using(unique=None)."
        )
    if each and is_guarded(task):
        raise InvalidTaskOption(
            f"{task.module_path} has a guard (lock, limit, rate or sequence), which is kept for "
            f"each job: with {each}() a job makes several calls. Use group() instead."
        )


def needs_of_step(
    task: Any, args: Sequence[Any], kwargs: Mapping[str, Any], receives: str
) -> tuple[NewNeed, ...]:
    """The guards of a call, of which the first argument may not be known yet.

    Raises:
        InvalidTaskOption: the key of one is made of that argument.
    """
    if not receives or not is_guarded(task):
        return needs_of(task, args, kwargs)
    try:
        return needs_of(task, (NOT_YET_KNOWN, *args), kwargs)
    except (_Asked, NotSerializable) as error:
        raise InvalidTaskOption(
            f"{task.module_path} has a guard whose key is made of the argument that it is given by "
            "the step before it, which nobody knows yet: write it with si(), or give the guard "
            "another key."
        ) from error


def check_backend(task: Any, keeps_atomic: bool, keeps_guards: bool, broker: str) -> None:
    """Raises InvalidTask for what the broker cannot keep."""
    if getattr(task, "atomic", False) and not keeps_atomic:
        raise InvalidTask(
            f"{task.module_path} has atomic=True, and the jobs of {broker} have no transaction to "
            "be part of: let BROKER be the database."
        )
    if is_guarded(task) and not keeps_guards:
        raise InvalidTask(
            f"{task.module_path} has a guard (unique, lock, limit, rate or sequence), and {broker} "
            "keeps none: let BROKER be the database."
        )


@lru_cache(maxsize=4096)
def _fits(function: Callable[..., Any], count: int, names: tuple[str, ...]) -> bool:
    """Whether it takes so many arguments by position, and these by name: the same for all calls of
    a kind, of which there may be many thousands."""
    signature = _signature(function)
    assert signature is not None
    try:
        signature.bind(*range(count), **dict.fromkeys(names))
    except TypeError:
        return False
    return True


@lru_cache(maxsize=1024)
def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None
