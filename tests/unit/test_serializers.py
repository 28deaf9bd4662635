"""Unserialisable values are refused with their name and a hint what to pass instead."""

import io
import threading
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from django.core.files.base import ContentFile
from django.http import HttpRequest, QueryDict
from django.utils.translation import gettext_lazy

from stoker.exceptions import NotSerializable
from stoker.jobs.package import JobOptions, Package, Sealer

from tests.app.models import Account

pytestmark = pytest.mark.unit

JSON = Sealer(["secret"], "shop")
PICKLE = Sealer(["secret"], "shop", serializer="pickle")


def package(*args: Any, metadata: Any = None, **kwargs: Any) -> Package:
    """Make a package of these arguments."""
    name = "feeds.tasks.import_feed"
    return Package(UUID(int=1), name, args, kwargs, "default", 0, 0.0, metadata=metadata or {})


def refused(*args: Any, **kwargs: Any) -> str:
    """Return the message that refuses these arguments."""
    with pytest.raises(NotSerializable) as caught:
        kwargs.pop("by", JSON).seal(package(*args, **kwargs))
    return str(caught.value)


def value_refused(value: Any, by: Sealer = JSON) -> str:
    """Return the message that refuses this return value."""
    with pytest.raises(NotSerializable) as caught:
        by.seal_value(value)
    return str(caught.value)


def test_refused_argument_is_named() -> None:
    """By its keyword, or by its position counted from 1."""
    account = Account(pk=7)
    hint = "which cannot be serialised as JSON: pass its primary key instead, and fetch it again"
    owner = "of feeds.tasks.import_feed is an Account"
    assert f"Argument 'feed' {owner}, {hint}" in refused(1, feed=account)
    assert f"Argument 1 {owner}, {hint}" in refused(account, 2)
    assert f"Argument 2 {owner}, {hint}" in refused(1, account)


def test_refused_nested_value_is_shown_by_its_path() -> None:
    """The path is written like Python."""
    task = "of feeds.tasks.import_feed"
    assert f'Argument 2 {task}, at args[1]["when"], is a set,' in refused(1, {"when": {1}})
    assert f'Argument \'x\' {task}, at kwargs["x"][0]["y"][(1,)], is a set,' in refused(
        x=[{"y": {(1,): {1}}}]
    )
    deep = refused([[[[[[[{1}]]]]]]])
    assert f"Argument 1 {task}, at args[0][0][0][0][0]..., is a set," in deep
    assert 'at kwargs["' + "n" * 60 + '"][0], is' in refused(**{"n" * 99: [{1}]})


def test_refused_metadata_and_return_values_are_named() -> None:
    """They are not arguments."""
    assert 'The metadata of feeds.tasks.import_feed, at metadata["a"]["b"], is a set' in refused(
        metadata={"a": {"b": {1}}}
    )
    assert value_refused({1}).startswith("The return value is a set, which cannot be")
    assert 'The return value, at result["a"][0], is a set, which' in value_refused({"a": [{1}]})
    assert "The return value, at result[0], is nan" in value_refused([float("nan")])


class Shade(Enum):
    """An enum that is no Django choice."""

    DARK = 1


@dataclass
class Point:
    """A dataclass."""

    x: int


class Grid:
    """Has a tolist() method like numpy arrays."""

    def tolist(self) -> list[int]:
        """Return plain values."""
        return [1]


class Unknown:
    """A class without a special hint."""


async def _coroutine() -> None:
    """Return a coroutine that is not awaited."""


@pytest.fixture
def coroutine() -> Iterator[Coroutine[Any, Any, None]]:
    """Yield a coroutine and close it."""
    made = _coroutine()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (Account.objects.all(), '.values_list("pk", flat=True)'),
        (Account.objects, '.values_list("pk", flat=True)'),
        (Account, "pass its dotted path as a str"),
        (Account(), "pass its primary key instead"),
        ({1, 2}, "pass a list of it"),
        (frozenset(), "pass a list of it"),
        ({}.keys(), "pass a list of it"),
        (lambda: 1, "call it first and pass what it returns, or pass its dotted path"),
        (len, "call it first"),
        ("".join, "call it first"),
        (partial(len, ""), "call it first"),
        (Account().save, "call it first"),
        (Shade.DARK, "pass its .value"),
        (Point(1), "pass dataclasses.asdict(...) of it"),
        (Point, "pass its dotted path"),
        (io.BytesIO(), "store the file, and pass its name"),
        (ContentFile(b""), "store the file, and pass its name"),
        (HttpRequest(), "pass what the task needs of it"),
        (QueryDict("a=1&a=2"), "pass .dict() of it, or dict(....lists())"),
        (gettext_lazy("Monday"), "pass str(...) of this lazy text"),
        (ValueError("x"), "pass str(...) of it"),
        (iter([1]), "pass list(...) of it"),
        ((number for number in [1]), "pass list(...) of it"),
        ({}.items(), "pass a list of it"),
        (Grid(), "pass .tolist() of it"),
        (Unknown(), "pass plain values instead (str, int, list, dict, datetime, Decimal, UUID"),
        (1j, 'or set SERIALIZER to "pickle"'),
        (object(), 'or set SERIALIZER to "pickle"'),
    ],
)
def test_hint_fits_the_refused_type(value: Any, hint: str) -> None:
    """Alone and nested, as an argument and as a return value."""
    returned = hint.replace("pass ", "return ")
    for sentence, advice in (
        (refused(value), hint),
        (refused(a=[(value,)]), hint),
        (value_refused({"a": value}), returned),
    ):
        assert advice in sentence
        assert type(value).__qualname__ in sentence
        assert "\n" not in sentence
        assert sentence.endswith(".")


def test_forgotten_await_is_reported(coroutine: Coroutine[Any, Any, None]) -> None:
    """The most common mistake in async code."""
    assert "is a coroutine, which cannot be serialised as JSON: await it first" in refused(
        coroutine
    )


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_numbers_outside_json_are_refused(number: float) -> None:
    """JSON has no such numbers, in PostgreSQL or elsewhere."""
    told = f"is {number}, a number that JSON does not have: pass None, or a str of it."
    assert refused(1, number).endswith(f"Argument 2 of feeds.tasks.import_feed {told}")
    assert told in refused(a={"b": [number]})
    assert told in refused(a=(number,))
    assert told.replace("pass", "return") in value_refused(number)
    assert JSON.seal(package(Decimal("NaN")))


def test_value_that_contains_itself_is_refused() -> None:
    """With a clear message instead of a RecursionError."""
    circle: list[Any] = []
    circle.append(circle)
    told = "is nested more than 100 levels deep, or contains itself: pass something flatter."
    assert refused(circle) == (
        f"Argument 1 of feeds.tasks.import_feed, at args[0][0][0][0][0]..., {told}"
    )
    returned = told.replace("pass", "return")
    assert returned in value_refused(circle)
    assert returned in value_refused({"a": ({1: circle},)})


class Twin(str):
    """A keyword that a dict can hold next to an equal one."""

    __slots__ = ()
    __hash__ = object.__hash__


def test_equal_keywords_are_refused() -> None:
    """There is no single argument to name."""
    assert refused(**{"a": 1, Twin("a"): 2}) == (
        "The arguments of feeds.tasks.import_feed would have two keys of the same text, of which "
        "JSON keeps one."
    )


def test_unserializable_options_are_refused() -> None:
    """Options are no arguments, but JSON cannot hold these either."""
    odd = replace(package(), options=JobOptions(timeout_seconds=float("nan")))
    with pytest.raises(NotSerializable, match="The options of feeds"):
        JSON.seal(odd)


def test_unpicklable_argument_is_named() -> None:
    """Pickle accepts nearly everything, but not a lock."""
    lock = threading.Lock()
    told = "is a lock, which cannot be pickled: TypeError: cannot pickle '_thread.lock' object."
    assert refused(1, lock, by=PICKLE) == f"Argument 2 of feeds.tasks.import_feed {told}"
    assert refused(a=lock, by=PICKLE) == f"Argument 'a' of feeds.tasks.import_feed {told}"
    assert value_refused(lock, by=PICKLE) == f"The return value {told}"
    told = (
        "feeds.tasks.import_feed cannot be pickled: TypeError: cannot pickle '_thread.lock' object"
    )
    assert told in refused(metadata={"a": lock}, by=PICKLE)


class Vicious:
    """Raises an exception when pickled whose str() raises, too."""

    def __reduce__(self) -> str:
        """Raise an exception without text."""

        class Silent(Exception):
            def __str__(self) -> str:
                raise ValueError

        raise Silent


def test_error_while_pickling_is_a_refusal() -> None:
    """Pickling runs the project's code, which may raise anything."""
    assert "is a Vicious, which cannot be pickled: " in refused(Vicious(), by=PICKLE)
    assert "is a Vicious, which cannot be pickled: " in value_refused(Vicious(), by=PICKLE)


class Noted:
    """Raises an exception with several lines and a note when pickled."""

    def __reduce__(self) -> str:
        error = ValueError("first\nsecond")
        error.add_note("when serializing list item 0")
        raise error


def test_error_of_pickle_is_told_without_further_lines_and_notes() -> None:
    """Python 3.14 adds notes to such errors."""
    assert refused(Noted(), by=PICKLE).endswith("which cannot be pickled: ValueError: first.")


def test_pickle_accepts_values_that_json_refuses() -> None:
    """This is why projects choose pickle."""
    taken: tuple[Any, ...] = ({1}, frozenset(), 1j, Point(1), float("inf"), Shade.DARK)
    assert PICKLE.open(PICKLE.seal(package(*taken))).args == taken
    assert PICKLE.open_value(PICKLE.seal_value(taken)) == taken
