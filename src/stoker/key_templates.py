"""Keys made of the arguments: which of them a format string or a callable names."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from inspect import Parameter
from string import Formatter
from typing import Any, NamedTuple

from .exceptions import InvalidTaskOption


def check_key(owner: str, key: Any) -> None:
    """Raises InvalidTaskOption for what is neither a format string, nor a callable, nor None."""
    if key is None or callable(key):
        return
    problem = "" if isinstance(key, str) else "it is no text"
    if key == "":
        problem = "it is empty"
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


class Wanted(NamedTuple):
    """The arguments that a callable names."""

    names: frozenset[str]
    required: frozenset[str]
    takes_rest: bool
    """Whether it takes any other as well."""


def wanted_by(function: Callable[..., Any]) -> Wanted | None:
    """None = it takes them by their place, or does not say how."""
    signature = signature_of_call(function, False)
    if signature is None:
        return None
    named = []
    for parameter in signature.parameters.values():
        if parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.POSITIONAL_ONLY):
            return None
        if parameter.kind is not Parameter.VAR_KEYWORD:
            named.append(parameter)
    return Wanted(
        frozenset(parameter.name for parameter in named),
        frozenset(one.name for one in named if one.default is Parameter.empty),
        len(named) < len(signature.parameters),
    )


def refuse_strangers(task: Any, options: Iterable[str]) -> None:
    """Raises InvalidTaskOption where a key in one of these options of a task names what is no
    parameter of its function."""
    for option in options:
        guards = getattr(task, option) or ()
        for guard in guards if isinstance(guards, tuple) else (guards,):
            for part in ("key", "weight"):
                made_by = getattr(guard, part, None)
                if isinstance(made_by, str):
                    _refuse_stranger(task, f"{option}: the {part} {made_by!r}", names_in(made_by))
                elif callable(made_by):
                    wanted = wanted_by(made_by)
                    required = wanted.required if wanted is not None else frozenset()
                    _refuse_stranger(task, f"{option}: the callable for its {part}", required)


def _refuse_stranger(task: Any, what: str, names: frozenset[str]) -> None:
    if not names:
        return
    signature = signature_of_call(task.func, task.takes_context)
    known = () if signature is None else tuple(signature.parameters)
    for name in sorted(names - set(known)):
        advice = f"write one of {', '.join(known)}" if known else "there are none, so leave it out"
        raise InvalidTaskOption(
            f"{what} names {name!r}, which is no parameter of {task.module_path}: {advice}."
        )
