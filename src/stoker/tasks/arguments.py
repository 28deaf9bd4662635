"""The arguments of a call in the form that interfaces show: with names, on one line, without
secrets.

All interfaces use ``shown_call``, which decides which values are hidden.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from inspect import Parameter, Signature
from typing import Any, NamedTuple
from uuid import UUID

from stoker.exceptions import UnknownTask

from .guards import signature_of_call
from .registry import task_of

DEEPEST = 20
LONGEST_LINE = 160
LONGEST_VALUE = 60
LONGEST_LABEL = 120
SHORTEST_FOUND = 4
BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
REFERENCE = re.compile(r"\{([^\W\d]\w*)\}")
WORDS = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")
SECRETS = (
    "password", "passwd", "passphrase", "secret", "token", "api_key", "apikey", "access_key",
    "private_key", "authorization", "credentials", "cookie", "session_key", "card_number", "cvv",
)  # fmt: skip
"""The default of the setting ``REDACT``."""
CUT = "\N{HORIZONTAL ELLIPSIS}"


class Hidden(str):
    """The type of ``HIDDEN``, which replaces a hidden value."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


HIDDEN = Hidden("[withheld]")
RECEIVED = Hidden("[received]")
"""Stands for the argument that a step of a workflow receives, before it runs."""
NOTHING = re.compile(r"(?!)")
"""Pattern that never matches."""


@dataclass(frozen=True, slots=True)
class ShownCall:
    """The arguments of a call, with hidden values replaced by ``HIDDEN``."""

    args: list[Any]
    kwargs: dict[str, Any]
    names: list[str]
    """The name of each positional argument; "argument 1" if it has none."""
    label: str = ""
    """The label from the task's option ``describe``; "" = none."""

    @property
    def line(self) -> str:
        """Return all arguments with their names on one line, shortened."""
        parts = [f"{name}={_short(value)}" for name, value in self.pairs]
        return _cut(", ".join(parts), LONGEST_LINE)

    @property
    def pairs(self) -> list[tuple[str, Any]]:
        """Return name and value of each argument."""
        return [*zip(self.names, self.args, strict=True), *self.kwargs.items()]


def mismatch_of(error: TypeError, signature: Signature, kwargs: Iterable[str]) -> str:
    """Return why ``signature.bind`` refused a call.

    If an argument is missing, Python's message does not mention keyword arguments that the function
    does not have. They are added, because one of them may be the missing argument, misspelt.
    """
    parameters = signature.parameters.values()
    unknown = [name for name in kwargs if name not in signature.parameters]
    takes_all = any(one.kind is Parameter.VAR_KEYWORD for one in parameters)
    if not unknown or takes_all or "unexpected" in str(error):
        return str(error)
    return f"{error}; unexpected: {', '.join(map(repr, unknown))}"


def shown_call(package: Any, secrets: Sequence[str], *, reveal: bool = False) -> ShownCall:
    """Return the arguments of a package.

    Args:
        package: an object with ``task``, ``args``, ``kwargs`` and ``options.via``.
        secrets: names of parameters and dict keys to hide besides the task's ``redact``.
        reveal: whether to hide nothing.
    """
    try:
        task = task_of(package)
    except UnknownTask:
        task = None
    if package.options.each:
        return _shown_calls(task, package, secrets, reveal)
    args = next(_calls_of(package))
    call = shown_arguments(task, args, package.kwargs, secrets, reveal=reveal)
    if package.options.receives:
        return replace(call, args=call.args[1:], names=call.names[1:])
    return call


def shown_arguments(
    task: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    secrets: Sequence[str],
    *,
    reveal: bool = False,
) -> ShownCall:
    """Return the given arguments in the form that interfaces show.

    Args:
        task: None = unknown. Its positional arguments are hidden, because they have no names.
        secrets, reveal: as for ``shown_call``.
    """
    names = names_by_position(task, len(args))
    if reveal:
        shown, by_name = list(args), dict(kwargs)
    else:
        hidden = names_to_hide(task, secrets)
        shown = _without_secrets(task, names, args, hidden)
        by_name = redacted(dict(kwargs), hidden)
    inner = called_by(task, args)
    if inner is None:
        return ShownCall(shown, by_name, names, _label_of(task, shown, by_name))
    call = shown_arguments(inner.task, inner.args, inner.kwargs, secrets, reveal=reveal)
    shown = shown if reveal else [*shown[:-1], [call.args, call.kwargs]]
    return ShownCall(shown, by_name, names, call.line)


class InnerCall(NamedTuple):
    """The call that a task makes whose jobs are shown under the name of another function."""

    task: Any
    """An object with ``func`` and ``takes_context``; None = the function is unknown."""
    args: Sequence[Any]
    kwargs: Mapping[str, Any]


def called_by(task: Any, args: Sequence[Any]) -> InnerCall | None:
    """Return the call of another function that a task would make with these arguments. The last
    argument describes the call. None = the task calls no other function."""
    inner = getattr(task, "inner_call", None)
    found: InnerCall | None = None if inner is None else inner(args)
    return found


def _shown_calls(task: Any, package: Any, secrets: Sequence[str], reveal: bool) -> ShownCall:
    """Return the list of calls that is the only argument of a job of a map."""
    calls = list(_calls_of(package))
    names = names_by_position(task, max(map(len, calls), default=0))
    if not reveal:
        hidden = names_to_hide(task, secrets)
        calls = [tuple(_without_secrets(task, names, one, hidden)) for one in calls]
    if package.options.each == "starmap":
        return ShownCall([calls], {}, ["calls"])
    return ShownCall([[value for (value,) in calls]], {}, names or ["calls"])


def _calls_of(package: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the positional arguments of each call that the job makes."""
    if package.options.each:
        for item in package.args[0]:
            yield tuple(item) if package.options.each == "starmap" else (item,)
    else:
        yield (RECEIVED, *package.args) if package.options.receives else tuple(package.args)


def names_to_hide(task: Any, secrets: Sequence[str]) -> Sequence[str]:
    """Return the names of hidden arguments: the given ones, and those of the task's ``redact``."""
    return (*secrets, *(getattr(task, "redact", None) or ()))


def _without_secrets(
    task: Any, names: Sequence[str], args: Sequence[Any], hidden: Sequence[str]
) -> list[Any]:
    """Return positional arguments with the hidden ones replaced."""
    is_known = task is not None
    return [
        redacted(value, hidden) if is_known and not is_secret(name, hidden) else HIDDEN
        for name, value in zip(names, args, strict=False)
    ]


def redacted(value: Any, secrets: Sequence[str], depth: int = 0) -> Any:
    """Return the value with the secrets in nested dicts hidden."""
    if depth > DEEPEST:
        return HIDDEN
    if isinstance(value, dict):
        return {
            key: HIDDEN if is_secret(str(key), secrets) else redacted(one, secrets, depth + 1)
            for key, one in value.items()
        }
    if type(value) in (list, tuple):
        return type(value)(redacted(one, secrets, depth + 1) for one in value)
    return value


def hidden_pattern(task: Any, package: Any, secrets: Sequence[str]) -> re.Pattern[str]:
    """Return a pattern that finds the hidden arguments of a job in other texts.

    Args:
        task, secrets: as for ``shown_arguments``.
    """
    texts: set[str] = set()
    for args in _calls_of(package):
        texts |= hidden_texts(task, args, package.kwargs, secrets)
    longest_first = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if texts else NOTHING


def hidden_texts(
    task: Any, args: Sequence[Any], kwargs: Mapping[str, Any], secrets: Sequence[str]
) -> set[str]:
    """Return the hidden values of a call as text, to find them in other texts.

    Each line of a value of several lines is included: printed text is searched line by line.
    Values with less than four characters are left out, because they would be found everywhere.

    Args:
        secrets: as for ``shown_call``.
    """
    inner = called_by(task, args)
    if inner is not None:
        return hidden_texts(inner.task, inner.args, inner.kwargs, secrets)
    hidden = names_to_hide(task, secrets)
    named = [*zip(names_by_position(task, len(args)), args, strict=True), *kwargs.items()]
    found: set[str] = set()
    for name, value in named:
        for text in _secrets_in(value, hidden, is_secret(name, hidden)):
            found.update((text, *map(str.strip, text.splitlines())))
    return {text for text in found if len(text) >= SHORTEST_FOUND}


def _secrets_in(
    value: Any, secrets: Sequence[str], is_hidden: bool, depth: int = 0
) -> Iterator[str]:
    if depth > DEEPEST:
        return
    if isinstance(value, Mapping):
        for key, one in value.items():
            is_one_hidden = is_hidden or is_secret(str(key), secrets)
            yield from _secrets_in(one, secrets, is_one_hidden, depth + 1)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _secrets_in(one, secrets, is_hidden, depth + 1)
    elif is_hidden and isinstance(value, str | int | UUID) and not isinstance(value, bool):
        yield str(value)


def is_secret(name: str, secrets: Sequence[str]) -> bool:
    """Return whether a secret's words are contained in the name, as "api key" in
    ``stripeApiKey``."""
    names = (f"_{_words(name)}_", f"_{_words(name.removesuffix('s'))}_")
    return any(f"_{secret}_" in one for secret in map(_words, secrets) for one in names)


def names_hidden(task: Any, arguments: Mapping[str, Any], secrets: Sequence[str]) -> list[str]:
    """Return the names of the arguments that are hidden or contain hidden values.

    Args:
        task: None = unknown.
        secrets: as for ``shown_call``.
    """
    hidden = names_to_hide(task, secrets)
    given = {name: {name: value} for name, value in arguments.items()}
    return [name for name, one in given.items() if redacted(one, hidden) != one]


def changed_call(
    task: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    changes: Mapping[str, Any],
    secrets: Sequence[str],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with some replaced.

    Args:
        changes: name -> new value. ``"{order_id}"`` in a new value stands for the old argument of
            that name. If it is the whole text, it is replaced by the value itself, otherwise by the
            value as text.
        secrets: as for ``shown_call``. Hidden arguments are neither replaced nor copied.

    Raises:
        ValueError: the task has no argument of that name, it is or contains a hidden value, or the
            arguments are those of another function, which has hidden arguments of its own.
    """
    if called_by(task, args) is not None:
        raise ValueError("It calls a function by its path: such a call can only be edited alone.")
    signature = signature_of_call(task.func, task.takes_context)
    if signature is None:
        raise ValueError("The parameters of its task cannot be read.")
    bound = signature.bind(*args, **kwargs)
    rest = next((p.name for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD), "")
    before = signature.bind(*args, **kwargs)
    before.apply_defaults()
    old = {**before.arguments, **before.arguments.get(rest, {})}
    hidden = names_to_hide(task, secrets)
    for name, template in changes.items():
        if template == HIDDEN or names_hidden(task, {name: template}, secrets):
            raise ValueError(f"The argument {name} is hidden: its call can only be edited alone.")
        parameter = signature.parameters.get(name)
        if parameter is not None and parameter.kind in (*BY_POSITION, parameter.KEYWORD_ONLY):
            bound.arguments[name] = _filled(template, old, hidden)
        elif rest:
            bound.arguments.setdefault(rest, {})[name] = _filled(template, old, hidden)
        else:
            raise ValueError(f"{task.module_path} takes no argument {name!r}.")
    # In the order of the parameters, which BoundArguments needs.
    bound.arguments = {p: bound.arguments[p] for p in signature.parameters if p in bound.arguments}
    return bound.args, dict(bound.kwargs)


def _filled(template: Any, old: Mapping[str, Any], hidden: Sequence[str]) -> Any:
    if isinstance(template, Mapping):
        return {key: _filled(one, old, hidden) for key, one in template.items()}
    if isinstance(template, list):
        return [_filled(one, old, hidden) for one in template]
    if not isinstance(template, str):
        return template

    def value_of(name: str) -> Any:
        if name not in old:
            raise ValueError(f"There is no argument {name!r} to copy.")
        if is_secret(name, hidden) or redacted(old[name], hidden) != old[name]:
            raise ValueError(f"The argument {name} is hidden: it cannot be copied.")
        return old[name]

    alone = REFERENCE.fullmatch(template)
    if alone is not None:
        return value_of(alone[1])
    return REFERENCE.sub(lambda found: str(value_of(found[1])), template)


def names_by_position(task: Any, count: int) -> list[str]:
    """Return the names of the first ``count`` positional arguments. An argument without a name is
    called "argument 1", and so on."""
    signature = None if task is None else signature_of_call(task.func, task.takes_context)
    parameters = () if signature is None else signature.parameters.values()
    known = [one.name for one in parameters if one.kind in BY_POSITION]
    return [*known[:count], *(f"argument {place + 1}" for place in range(len(known), count))]


def _label_of(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    template = getattr(task, "describe", None)
    if not template:
        return ""
    signature = signature_of_call(task.func, task.takes_context)
    try:
        assert signature is not None
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        text = template.format(**bound.arguments)
    except Exception:  # noqa: BLE001 - a value's __format__ may raise anything
        return ""
    return _cut(" ".join(text.split()), LONGEST_LABEL)


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - a value's __repr__ may raise anything
        text = f"<its repr() raised {type(error).__name__}>"
    return _cut(" ".join(text.split()), LONGEST_VALUE)


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}{CUT}"


@lru_cache(maxsize=4096)
def _words(name: str) -> str:
    """Return ``stripe_api_key`` for ``stripeApiKey`` and ``stripe-api-key``."""
    return "_".join(word.lower() for word in WORDS.findall(name[:200]))
