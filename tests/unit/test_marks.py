"""Marks of pages: read as the list wrote them, refused otherwise."""

from datetime import UTC, datetime
from uuid import UUID

import pytest

from stoker.values.marks import key_of, mark_of

from tests import hostile

KEYS = (
    ((int, UUID), (7, hostile.ID)),
    ((datetime, UUID), (datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC), hostile.ID)),
    ((UUID,), (hostile.ID,)),
)


@pytest.mark.parametrize(("kinds", "key"), KEYS)
def test_mark_is_read_as_it_was_written(kinds: tuple[type, ...], key: tuple[object, ...]) -> None:
    assert key_of(mark_of(key), kinds) == key


@pytest.mark.parametrize(("kinds", "key"), KEYS)
def test_mark_of_another_list_is_refused(kinds: tuple[type, ...], key: tuple[object, ...]) -> None:
    for others, _ in KEYS:
        if others != kinds:
            with pytest.raises(ValueError, match="is not the mark of a page of this list"):
                key_of(mark_of(key), others)


@pytest.mark.parametrize(
    "mark",
    [
        f"{2**63}~{hostile.ID}",
        f"0001-01-01T00:00:00+23:59~{hostile.ID}",
        f"9999-12-31T23:59:59-23:59~{hostile.ID}",
        "",
    ],
)
def test_mark_with_an_overflow_is_refused(mark: str) -> None:
    for kinds, _ in KEYS:
        with pytest.raises(ValueError, match="is not the mark of a page of this list"):
            key_of(mark, kinds)
