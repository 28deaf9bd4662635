"""Documents in the stand-in for MongoDB: filters, updates, orders, pipelines.

Only what the adapter uses. Everything else raises an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from bson.binary import Binary

Document = dict[str, Any]
MISSING: Any = object()


class RefusedError(Exception):
    """Raised for what the stand-in does not support."""


def now() -> datetime:
    """Return the time of the server's clock, which counts in milliseconds."""
    moment = datetime.now(UTC)
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def frozen(value: Any) -> Any:
    """Return the key under which an `_id` is found."""
    return (value.subtype, bytes(value)) if isinstance(value, Binary) else value


def matches(document: Document, wanted: Document) -> bool:
    """Return whether a document matches a filter."""
    return all(_holds(document, name, condition) for name, condition in wanted.items())


def _holds(document: Document, name: str, condition: Any) -> bool:
    value = document.get(name, MISSING)
    if isinstance(condition, dict) and any(key.startswith("$") for key in condition):
        if unknown := set(condition) - set(COMPARISONS):
            raise RefusedError(f"unknown operator {unknown}")
        return all(COMPARISONS[name](value, other) for name, other in condition.items())
    return _is(value, condition)


def _is(value: Any, other: Any) -> bool:
    if other is None:
        return value is MISSING or value is None
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)


COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "$eq": _is,
    "$ne": lambda value, other: not _is(value, other),
    "$in": lambda value, others: any(_is(value, other) for other in others),
    "$nin": lambda value, others: not any(_is(value, other) for other in others),
    "$lt": lambda value, other: type(value) is type(other) and value < other,
    "$lte": lambda value, other: type(value) is type(other) and value <= other,
    "$gt": lambda value, other: type(value) is type(other) and value > other,
}


def changed(document: Document, change: Any) -> Document:
    """Return the document after an update, by operators or by a pipeline."""
    new = dict(document)
    if isinstance(change, list):
        for stage in change:
            ((name, what),) = stage.items()
            if name == "$set":
                new |= {field: evaluated(value, new) for field, value in what.items()}
            elif name == "$unset":
                for field in [what] if isinstance(what, str) else what:
                    new.pop(field, None)
            elif name == "$replaceWith":
                new = {field: evaluated(value, new) for field, value in what.items()}
            else:
                raise RefusedError(f"unknown stage {name}")
        return new
    for name, what in change.items():
        if name == "$set":
            new |= what
        elif name == "$unset":
            for field in what:
                new.pop(field, None)
        elif name == "$inc":
            new |= {field: new.get(field, 0) + by for field, by in what.items()}
        else:
            raise RefusedError(f"unknown operator {name}")
    return new


def evaluated(expression: Any, document: Document) -> Any:
    """Evaluate an expression of an aggregation."""
    if isinstance(expression, str) and expression.startswith("$"):
        return now() if expression == "$$NOW" else document.get(expression[1:])
    if isinstance(expression, dict):
        if set(expression) == {"$add"}:
            return _sum([evaluated(one, document) for one in expression["$add"]])
        if any(name.startswith("$") for name in expression):
            raise RefusedError(f"unknown expression {expression}")
        return {name: evaluated(one, document) for name, one in expression.items()}
    return expression


def _sum(values: list[Any]) -> Any:
    if isinstance(values[0], datetime):
        return values[0] + timedelta(milliseconds=sum(values[1:]))
    return sum(values)


def in_order(documents: Iterable[Document], order: Document) -> list[Document]:
    """Sort like `sort`: binary values by length and subtype first."""
    found = list(documents)
    for name, direction in reversed(order.items()):
        found.sort(key=lambda one: _rank(one.get(name)), reverse=direction < 0)
    return found


def _rank(value: Any) -> Any:
    if value is None:
        return (0,)
    if isinstance(value, Binary):
        return (2, len(value), value.subtype, bytes(value))
    return (1, value)


def aggregated(documents: Iterable[Document], pipeline: list[Document]) -> list[Document]:
    """Run `$match` and `$group` with sums."""
    found = list(documents)
    for stage in pipeline:
        ((name, what),) = stage.items()
        if name == "$match":
            found = [one for one in found if matches(one, what)]
        elif name == "$group":
            found = _grouped(found, what)
        else:
            raise RefusedError(f"unknown stage {name}")
    return found


def _grouped(documents: list[Document], what: Document) -> list[Document]:
    groups: dict[str, Document] = {}
    for one in documents:
        key = evaluated(what["_id"], one)
        group = groups.setdefault(repr(key), {"_id": key})
        for name, sums in what.items():
            if name != "_id":
                group[name] = group.get(name, 0) + evaluated(sums["$sum"], one)
    return list(groups.values())
