"""Put the hidden values of a call back into its edited arguments."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from stoker.values.text import plain

from .arguments import HIDDEN

MOST_PATH_SETS = 20
"""Maximum number of different sets of hidden paths among the changed elements of a list. All
changed elements are compared once for each of them."""


def restored(value: Any, before: Any) -> Any:
    """Put the hidden values back into an edited value.

    Args:
        before: the value before it was edited; ``...`` = there was none.

    Raises:
        ValueError: ``HIDDEN`` is at a place where there was no value before, or in a list whose
            elements may have been added, removed or moved.
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
        if _may_have_moved(plain(value), plain(old)):
            raise ValueError(
                "elements of a list or the arguments may have been added, removed or moved: write "
                f"their values instead of {HIDDEN}, or leave the elements in their places"
            )
        return type(value)(
            restored(one, old[place] if place < len(old) else ...)
            for place, one in enumerate(value)
        )
    return value


def _may_have_moved(edited: Sequence[Any], before: Sequence[Any]) -> bool:
    """Return whether hidden values may belong to elements that have left their places.

    Return True if the list is shorter than before; if it is longer and an old element has changed;
    or if a changed element has the visible parts of an old one that is no longer in its own place.

    Args:
        edited, before: in the form that the HTTP API shows, in which they may have been edited.
    """
    hidden = [frozenset(_hidden_paths(one)) for one in edited]
    if not any(hidden):
        return False
    if len(edited) < len(before):
        return True
    changed = [
        place
        for place, old in enumerate(before)
        if _visible(edited[place], hidden[place]) != _visible(old, hidden[place])
    ]
    if len(edited) > len(before):
        return bool(changed)
    path_sets = {hidden[place] for place in changed if hidden[place]}
    if len(path_sets) > MOST_PATH_SETS:
        return True
    gone = {paths: {_visible(before[place], paths) for place in changed} for paths in path_sets}
    return any(
        hidden[place] and _visible(edited[place], hidden[place]) in gone[hidden[place]]
        for place in changed
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
