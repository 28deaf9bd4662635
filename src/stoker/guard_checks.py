"""What may be given to a task's options for guards."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from .exceptions import InvalidTaskOption
from .guard_options import Guard, InSequence, Limit, Lock, Rate, Unique

Check = Callable[[str, Any], Any]


def one_guard(kind: type[Guard]) -> Check:
    def check(name: str, value: Any) -> Any:
        if not isinstance(value, kind):
            raise InvalidTaskOption(f"{name}={value!r}: write {name}={_meant(kind, value)}.")
        return value

    return check


def some_guards(kind: type[Limit | Rate]) -> Check:
    """One of that kind, or several of them; kept as a tuple."""

    def check(name: str, value: Any) -> Any:
        guards = tuple(value) if isinstance(value, tuple | list) else (value,)
        for one in guards:
            if not isinstance(one, kind):
                raise InvalidTaskOption(
                    f"{name}={value!r}: write {name}={_meant(kind, value)}, or several in a tuple."
                )
        _refuse_twins(name, guards)
        return guards

    return check


def _refuse_twins(name: str, guards: Sequence[Limit | Rate]) -> None:
    """Each of the rates of one key needs a period of its own, each limit a key."""
    seen: set[Any] = set()
    for guard in guards:
        twin = (guard.key, guard.window if isinstance(guard, Rate) else None)
        if twin in seen:
            raise InvalidTaskOption(
                f"{name}: two of them count the same jobs, under the key {guard.key!r}. Write the "
                "stricter one alone, or another key."
            )
        seen.add(twin)


def in_sequence(name: str, value: Any) -> InSequence:
    """A key alone, or an InSequence."""
    if isinstance(value, InSequence):
        return value
    if isinstance(value, str):
        return InSequence(value)
    raise InvalidTaskOption(
        f'{name}={value!r}: write {name}="account:{{account_id}}", or {EXAMPLES[InSequence]}, of '
        "which the key may also be a callable."
    )


def _meant(kind: type[Guard], value: Any) -> str:
    """What was probably meant, else an example."""
    fits = isinstance(value, str if kind in (Unique, Lock, Rate) else int)
    if fits and not isinstance(value, bool):
        with suppress(InvalidTaskOption):
            kind(value)
            return f"{kind.__name__}({json.dumps(value, ensure_ascii=False)})"
    return EXAMPLES[kind]


EXAMPLES: dict[type[Guard], str] = {
    Unique: 'Unique("feed:{feed_id}")',
    Lock: 'Lock("feed:{feed_id}")',
    Limit: "Limit(4)",
    Rate: 'Rate("100/m")',
    InSequence: 'InSequence("account:{account_id}", after_failure="halt")',
}
