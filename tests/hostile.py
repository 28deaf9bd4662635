"""Values of query parameters that a page must refuse or ignore, never answer with an error 5xx."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any
from uuid import UUID

import pytest
from django.core.handlers.wsgi import WSGIRequest
from django.http import QueryDict

ID = UUID("01890a5d-ac96-774b-bcce-b302099a8057")
VALUES: Sequence[str] = (
    "",
    "-1",
    "²",
    "9" * 400,
    "1e400",
    "NaN",
    "[]",
    "%",
    "\\",
    "'\"",
    "\x00",
    "\x1b[31m",
    "\u202eabc",
    "\U0001f600",
    "a" * 10_000,
    "<script>alert(1)</script>",
    "//evil.example",
    str(ID),
    ID.hex,
    "2025-02-30T00:00:00Z",
    "2025-01-01T00:00:00",
    "0001-01-01T00:00:00+23:59",
    "9999-12-31T23:59:59-23:59",
)
"""Wrong types, characters that a database refuses, and overflows."""
CURSORS: Sequence[str] = (
    "~",
    "~~",
    f"~{ID}",
    f"{ID}~{ID}",
    f"7~{ID}",
    f"²~{ID}",
    f"--7~{ID}",
    f"{2**63}~{ID}",
    f"{'9' * 5000}~{ID}",
    f"2025-01-01T00:00:00~{ID}",
    f"2025-01-01T00:00:00+00:00~{ID}",
    f"0001-01-01T00:00:00+23:59~{ID}",
    f"9999-12-31T23:59:59.999999-23:59~{ID}",
    "2025-01-01T00:00:00+00:00~",
    "2025-01-01T00:00:00+00:00~7",
)
"""Cursors of other lists, and cursors with overflows."""
CURSOR = "after"
PAIRS = 20
"""How many queries have a hostile value beside a valid or another hostile one."""


def queries(names: Mapping[str, Sequence[str]], random: Random) -> Iterator[dict[str, str]]:
    """Return queries with each hostile value of each parameter, and random pairs of parameters.

    Args:
        names: Parameter -> its valid values.
    """
    for name in names:
        yield from ({name: value} for value in values_for(name))
    if len(names) > 1:
        for _ in range(PAIRS):
            first, second = random.sample(sorted(names), 2)
            beside = random.choice([*names[first], *values_for(first)])
            yield {first: beside, second: random.choice(values_for(second))}


def few_queries(names: Mapping[str, Sequence[str]], random: Random) -> Iterator[dict[str, str]]:
    """Return some of these queries: one for each parameter, and all cursors."""
    for name in names:
        chosen = CURSORS if name == CURSOR else random.sample(VALUES, 1)
        yield from ({name: value} for value in chosen)


def values_for(name: str) -> Sequence[str]:
    return (*VALUES, *CURSORS) if name == CURSOR else VALUES


def noted_parameters(monkeypatch: pytest.MonkeyPatch) -> Callable[[], set[str]]:
    """Note which parameters of query strings are read from now on. Return a function that returns
    their names, and forgets them."""
    read: set[str] = set()

    def noting(usual: Any) -> Any:
        def note(self: Any, name: str, *more: Any) -> Any:
            read.add(name)
            return usual(self, name, *more)

        return note

    def noted(kind: type[Any]) -> Any:
        methods = ("get", "getlist", "__getitem__", "__contains__")
        known = {one: noting(getattr(kind, one)) for one in methods if hasattr(kind, one)}
        return type("Noted", (kind,), known)

    query, plain = noted(QueryDict), noted(dict)
    query.dict = lambda self: plain(QueryDict.dict(self))
    given = property(lambda self: query(self.META["QUERY_STRING"]))
    monkeypatch.setattr(WSGIRequest, "GET", given)

    def names() -> set[str]:
        found = set(read)
        read.clear()
        return found

    return names
