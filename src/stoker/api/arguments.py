"""Whether a task takes these arguments: their names and, as far as annotations say, their types."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from inspect import Parameter, Signature
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from stoker.key_templates import signature_of_call

from .problems import Refusal


def checked_call(
    task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments as the function is to have them: a text is made a datetime where it says so.

    Raises:
        Refusal: it does not take these; each that is wrong is told.
    """
    signature = signature_of(task)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        detail = f"{task.func.__name__}{signature} cannot be called so: {error}."
        raise Refusal(422, detail) from None
    problems: list[dict[str, Any]] = []
    adapters = adapters_of(task.func, task.takes_context)
    by_place = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    ]
    rest = {one.kind: one.name for one in signature.parameters.values()}
    checked_args = []
    for place, value in enumerate(args):
        is_named = place < len(by_place)
        name = by_place[place].name if is_named else rest[Parameter.VAR_POSITIONAL]
        checked_args.append(_checked(adapters.get(name), value, ["args", place], problems))
    checked_kwargs = {}
    for name, value in kwargs.items():
        known = name if name in signature.parameters else rest[Parameter.VAR_KEYWORD]
        checked_kwargs[name] = _checked(adapters.get(known), value, ["kwargs", name], problems)
    if problems:
        first = problems[0]
        where = ".".join(str(part) for part in first["where"])
        raise Refusal(422, f"{where}: {first['problem']}", errors=problems)
    return checked_args, checked_kwargs


def signature_of(task: Any) -> Signature:
    """What its enqueue takes."""
    signature = signature_of_call(task.func, task.takes_context)
    if signature is None:  # it does not say: anything
        return Signature(
            [
                Parameter("args", Parameter.VAR_POSITIONAL),
                Parameter("kwargs", Parameter.VAR_KEYWORD),
            ]
        )
    return signature


@lru_cache(maxsize=1024)
def adapters_of(function: Any, takes_context: bool) -> Mapping[str, TypeAdapter[Any]]:
    """Parameter -> what checks its values. Without those of which that cannot be told."""
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError):  # imported for type checkers only
        return {}
    hints.pop("return", None)
    found = {}
    for name, hint in hints.items():
        try:
            found[name] = TypeAdapter(hint)
        except (PydanticUserError, TypeError):
            continue
    return found


def _checked(
    adapter: TypeAdapter[Any] | None, value: Any, where: list[Any], problems: list[dict[str, Any]]
) -> Any:
    if adapter is None:
        return value
    try:
        return adapter.validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        problems += [
            {"where": ["body", *where, *map(str, one["loc"])], "problem": one["msg"]}
            for one in error.errors(include_url=False, include_input=False, include_context=False)
        ]
        return value
