"""Put the hidden values of a call back into its edited arguments."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from stoker.values.text import plain

from .arguments import HIDDEN


def restored(value: Any, before: Any) -> Any:
    """Put the hidden values back into an edited value.

    Args:
        before: the value before it was edited; ``...`` = there was none.

    Raises:
        ValueError: ``HIDDEN`` is at a place where there was no value before, or in a list whose
            elements may have moved.
    """
    if isinstance(value, str) and value == HIDDEN:
        if before is ...:
            raise ValueError(f"write a value instead of {HIDDEN}")
        return before
    if isinstance(value, dict):
        known = before if isinstance(before, Mapping) else {}
        return {key: restored(one, known.get(key, ...)) for key, one in value.items()}
    if type(value) in (list, tuple):
        old = before if isinstance(before, list | tuple) else ()
        if old and _may_have_moved(plain(value), plain(old)):
            raise ValueError(
                "elements of a list were added, removed or moved: write their values instead of "
                f"{HIDDEN}"
            )
        return type(value)(
            restored(one, old[place] if place < len(old) else ...)
            for place, one in enumerate(value)
        )
    return value


def _may_have_moved(edited: Sequence[Any], before: Sequence[Any]) -> bool:
    """Return whether the elements of an edited list that have hidden values may have had other
    places before: the length has changed, or one of them has the visible parts of another old
    element instead of those in its own place.

    Args:
        edited, before: in the form that the HTTP API shows, in which they may have been edited.
    """
    hidden = {place: frozenset(_hidden_paths(one)) for place, one in enumerate(edited)}
    hidden = {place: paths for place, paths in hidden.items() if paths}
    if len(edited) != len(before):
        return bool(hidden)
    # Most elements have the same hidden paths, so each old element is read about once.
    old = {paths: [_visible(one, paths) for one in before] for paths in set(hidden.values())}
    known = {paths: set(parts) for paths, parts in old.items()}
    new = {place: _visible(edited[place], paths) for place, paths in hidden.items()}
    return any(
        new[place] != old[paths][place] and new[place] in known[paths]
        for place, paths in hidden.items()
    )


def _hidden_paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the keys and indexes that lead to each ``HIDDEN`` in a value."""
    if value == HIDDEN:
        yield path
    for key, one in _items_of(value):
        yield from _hidden_paths(one, (*path, key))


def _visible(value: Any, hidden: Collection[tuple[Any, ...]], path: tuple[Any, ...] = ()) -> Any:
    """Return a value without what is at the hidden paths, in a form that can be hashed."""
    if path in hidden:
        return HIDDEN
    if isinstance(value, dict | list):
        parts = _items_of(value)
        return frozenset((key, _visible(one, hidden, (*path, key))) for key, one in parts)
    return value


def _items_of(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, list) else ()
