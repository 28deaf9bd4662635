"""Keys that are format strings over the arguments: which names are in them, and which there are."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from string import Formatter
from typing import Any

from .exceptions import InvalidTaskOption


def check_key(owner: str, key: Any) -> None:
    """Raises InvalidTaskOption for what is neither a format string, nor a callable, nor None."""
    if key is None or callable(key):
        return
    problem = "" if isinstance(key, str) and key else "it is no text"
    try:
        names_in(key if not problem else "")
    except ValueError as error:
        problem = str(error)
    if problem:
        raise InvalidTaskOption(
            f'{owner}(key={key!r}): {problem}. Write a text such as "feed:{{feed_id}}", in which a '
            "brace of its own stands twice, or a callable of the arguments."
        )


@lru_cache(maxsize=1024)
def names_in(template: str) -> frozenset[str]:
    """The names in a format string, without what follows them. Raises ValueError if it is none."""
    names: set[str] = set()
    for _, field, spec, conversion in Formatter().parse(template):
        if field is None:
            continue
        name = re.split(r"[.\[]", field, maxsplit=1)[0]
        if not name.isidentifier():
            raise ValueError(f"{{{field}}} does not begin with the name of a parameter")
        if conversion not in (None, "s", "r", "a"):
            raise ValueError(f"there is no conversion !{conversion}")
        names |= {name, *names_in(spec or "")}
    return frozenset(names)


@lru_cache(maxsize=1024)
def signature_of_call(
    function: Callable[..., Any], takes_context: bool
) -> inspect.Signature | None:
    """What ``enqueue`` takes: the function's parameters, without ``context``. None where they can't
    be had."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    if not takes_context:
        return signature
    return signature.replace(parameters=tuple(signature.parameters.values())[1:])


def refuse_strangers(task: Any, options: Iterable[str]) -> None:
    """Raises InvalidTaskOption where a key in one of these options of a task names what is no
    parameter of its function."""
    for option in options:
        guards = getattr(task, option) or ()
        for guard in guards if isinstance(guards, tuple) else (guards,):
            if isinstance(guard.key, str):
                _refuse_stranger(task, option, guard.key)


def _refuse_stranger(task: Any, option: str, template: str) -> None:
    names = names_in(template)
    if not names:
        return
    signature = signature_of_call(task.func, task.takes_context)
    known = () if signature is None else tuple(signature.parameters)
    for name in sorted(names.difference(known)):
        advice = f"write one of {', '.join(known)}" if known else "there are none, so leave it out"
        raise InvalidTaskOption(
            f"{option}: the key {template!r} names {name!r}, which is no parameter of "
            f"{task.module_path}: {advice}."
        )
