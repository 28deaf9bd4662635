"""Names of locks as keys: safe anywhere, and never two names for one key."""

from __future__ import annotations

import warnings

import pytest
from django.core.cache.backends.base import memcache_key_warnings
from hypothesis import given
from hypothesis import strategies as st

from stoker.locks.lock import LONGEST_KEY, key_of, refuse_bad_name

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("name", ["feed:7", "a", "reports/2026-01", "x" * LONGEST_KEY, "{a}[b]|c"])
def test_plain_names_stay_as_they_are(name: str) -> None:
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
def test_others_are_hashed_with_a_beginning_that_can_be_read(name: str, begins: str) -> None:
    key = key_of(name)
    assert key.startswith(begins)
    assert len(key) == len(begins) + 40


def test_what_a_database_may_hold_for_the_same_is_not() -> None:
    """MariaDB compares without regard to case, accents and blanks at the end."""
    names = ["feed", "Feed", "FEED", "feed ", "féed", "feed\t", key_of("Feed")]
    assert len({key_of(name) for name in names}) == len(names)


@given(st.text(min_size=1))
def test_every_key_is_one_that_memcached_takes(name: str) -> None:
    key = key_of(name)
    assert 0 < len(key) <= LONGEST_KEY
    assert key == key.lower()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not list(memcache_key_warnings("stoker:fence:" + key))


@given(st.text(min_size=1), st.text(min_size=1))
def test_two_names_have_two_keys(one: str, other: str) -> None:
    assert (key_of(one) == key_of(other)) == (one == other)
    assert key_of(key_of(one)) != key_of(other) or key_of(one) == other


@pytest.mark.parametrize("name", [7, None, b"feed", ("feed", 7)])
def test_a_name_is_a_string(name: object) -> None:
    with pytest.raises(TypeError, match="The name of a lock is a string, but this is"):
        refuse_bad_name(name)


def test_a_name_is_not_empty() -> None:
    with pytest.raises(ValueError, match="this one is empty"):
        refuse_bad_name("")


def test_names_of_stoker_are_refused() -> None:
    with pytest.raises(ValueError, match="'stoker:upkeep' is Stoker's own"):
        refuse_bad_name("stoker:upkeep")
