"""Keys of lock names: valid in every store, and different for different names."""

from __future__ import annotations

import warnings

import pytest
from django.core.cache.backends.base import memcache_key_warnings
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.locks.lock import LONGEST_KEY, key_of, refuse_bad_name

from tests.examples import examples

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("name", ["feed:7", "a", "reports/2026-01", "x" * LONGEST_KEY, "{a}[b]|c"])
def test_plain_name_is_its_own_key(name: str) -> None:
    assert key_of(name) == name


@pytest.mark.parametrize(
    ("name", "begins"),
    [
        ("Feed 7", "feed_7~"),
        ("ä", "_~"),
        ("a\nb", "a_b~"),
        ("x" * (LONGEST_KEY + 1), "x" * 60 + "~"),
        ("~", "_~"),
        ("🔒" * 400, "_~"),
        ("\ud800", "_~"),
    ],
)
def test_other_names_are_hashed_with_a_readable_prefix(name: str, begins: str) -> None:
    key = key_of(name)
    assert key.startswith(begins)
    assert len(key) == len(begins) + 40


def test_names_that_a_database_compares_as_equal_have_different_keys() -> None:
    """MariaDB ignores case, accents and trailing blanks."""
    names = ["feed", "Feed", "FEED", "feed ", "féed", "feed\t", key_of("Feed")]
    assert len({key_of(name) for name in names}) == len(names)


@settings(deadline=None, max_examples=examples())
@given(st.text(min_size=1))
def test_every_key_is_valid_for_memcached(name: str) -> None:
    key = key_of(name)
    assert 0 < len(key) <= LONGEST_KEY
    assert key == key.lower()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not list(memcache_key_warnings("stoker:fence:" + key))


@settings(deadline=None, max_examples=examples())
@given(st.text(min_size=1), st.text(min_size=1))
def test_different_names_have_different_keys(one: str, other: str) -> None:
    assert (key_of(one) == key_of(other)) == (one == other)
    assert key_of(key_of(one)) != key_of(other) or key_of(one) == other


@pytest.mark.parametrize("name", [7, None, b"feed", ("feed", 7)])
def test_name_of_another_type_is_refused(name: object) -> None:
    with pytest.raises(TypeError, match="The name of a lock is a string, but this is"):
        refuse_bad_name(name)


def test_empty_name_is_refused() -> None:
    with pytest.raises(ValueError, match="this one is empty"):
        refuse_bad_name("")


def test_reserved_name_is_refused() -> None:
    with pytest.raises(ValueError, match="'stoker:upkeep' is reserved for Stoker"):
        refuse_bad_name("stoker:upkeep")
