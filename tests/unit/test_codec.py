"""Values survive JSON with the same type, value and time zone."""

# ruff: noqa: DTZ001, DTZ901 - moments without a zone come back, too

import sys
from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from types import MappingProxyType
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from django.db.models import IntegerChoices, TextChoices
from django.utils.datastructures import MultiValueDict
from django.utils.safestring import mark_safe
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.values import codec
from stoker.values.codec import MOST_LEVELS, NotEncodable, value_as_json

from tests.examples import examples

pytestmark = pytest.mark.unit

ZURICH = ZoneInfo("Europe/Zurich")
ODD_OFFSET = timezone(timedelta(hours=-1, minutes=2, seconds=3, microseconds=4))

PLAIN: list[Any] = [
    None,
    True,
    0,
    -1,
    1.0,
    -0.0,
    5e-324,
    "",
    "é\x00\U0001f600",
    [],
    {},
    [[1], {"a": None}],
]
DATES = [
    datetime.min,
    datetime.max,
    datetime(2026, 10, 25, 2, 30),
    datetime(2026, 10, 25, 2, 30, fold=1),
    datetime(2026, 10, 25, 2, 30, tzinfo=UTC),
    datetime(2026, 10, 25, 2, 30, 0, 1, tzinfo=ODD_OFFSET),
    datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=UTC),
    datetime(2026, 10, 25, 2, 30, tzinfo=ZURICH),
    datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZURICH),
    datetime(2026, 3, 29, 2, 30, 1, 999999, tzinfo=ZURICH),
    datetime(1850, 1, 1, tzinfo=ZURICH),
    datetime(2026, 1, 1, tzinfo=ZoneInfo("UTC")),
    date(2026, 10, 25),
    date.min,
    time(2, 30),
    time(2, 30, 0, 5, fold=1),
    time(2, 30, tzinfo=ODD_OFFSET),
    time(2, 30, fold=1, tzinfo=ZURICH),
]
OTHERS = [
    (),
    ((),),
    (1, [2, (3,)]),
    timedelta.min,
    timedelta.max,
    timedelta(microseconds=-1),
    *map(Decimal, ["0", "-0", "1.10", "1E+3", "-1e-400", "NaN", "-Infinity", "0.1" + "0" * 50]),
    UUID(int=0),
    UUID("01890a5d-ac96-774b-bcce-b302099a8057"),
    b"",
    bytes(range(256)),
]
KEYS = [
    {1: "a", "1": "b", 1.5: "c", False: "d", None: "e"},
    {(1, (2,)): {UUID(int=1): [{b"x": 1}]}},
    {date(2026, 1, 1): 1, Decimal("1.5"): 2},
    {"a": {2: ()}},
]
LOOK_LIKE_OURS = [
    {"$tuple": [1, 2]},
    {"$dict": [[1, 2]]},
    {"$": 0},
    {"$datetime": {"$datetime": {"$tuple": ()}}},
    [{"$nothing": None}],
    {"$tuple": [1], "$dict": 2},
    {"a$": 1},
    '{"$tuple":[1]}',
    {'{"$tuple": ': ['"}', {"": "$"}]},
]
HALF_CHARACTERS = ["\ud800", "\udfff", "\ud83d\ude00", {"\ud83d": "\ude00"}, "a\udc80b"]
LARGE = [10**n + 1 for n in (15, 308, 599, 601, 602, 603, 4299, 4300, 5000, 20_000)]


def there_and_back(value: Any) -> Any:
    """Write and read a value like an argument: plain if possible, else encoded."""
    return codec.read(value_as_json(value))


def is_same(one: Any, other: Any) -> bool:
    """Return whether two values have the same type, value, order, sign, fold and zone."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, dict):
        return is_same(list(one), list(other)) and is_same(list(one.values()), list(other.values()))
    if isinstance(one, float | Decimal):
        return repr(one) == repr(other)
    if isinstance(one, datetime | time):
        return one == other and hands(one) == hands(other)
    return bool(one == other)


def hands(clock: datetime | time) -> tuple[Any, ...]:
    """Return all properties of a datetime or time."""
    zone = getattr(clock.tzinfo, "key", None)
    return clock.replace(tzinfo=None), clock.fold, clock.utcoffset(), zone


def changed(value: Any) -> bool:
    """Return whether a round trip changes the value."""
    return not is_same(there_and_back(value), value)


@pytest.mark.parametrize(
    "values", [PLAIN, DATES, OTHERS, KEYS, LOOK_LIKE_OURS, HALF_CHARACTERS, LARGE]
)
def test_values_survive_a_round_trip(values: list[Any]) -> None:
    """Each alone, then all of them nested."""
    assert not list(filter(changed, values))
    assert not changed(values)
    assert not changed({"a": tuple(values), 1: [{"b": value} for value in values]})


def test_plain_values_are_written_as_plain_json() -> None:
    """This makes writing quick. Other values are not plain."""
    assert all(map(codec.is_plain, PLAIN))
    assert not any(map(codec.is_plain, [*DATES, *OTHERS, *KEYS, [()], {"a": [b""]}]))
    assert codec.write({"a": [1, None, "é"]}) == '{"a":[1,null,"é"]}'.encode()


def atoms() -> st.SearchStrategy[Any]:
    """Draw any value that is no container and can be a key."""
    zones = st.none() | st.sampled_from([UTC, ODD_OFFSET, ZURICH]) | st.timezones()
    texts = st.text(st.characters()) | st.text('$tuplei{}"[', max_size=8)
    return st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.integers(-(10**700), 10**700),
        st.floats(allow_nan=False, allow_infinity=False),
        texts,
        st.sampled_from(["$tuple", "$dict", "$datetime", "$"]),
        st.binary(max_size=20),
        st.datetimes(timezones=zones),
        st.dates(),
        st.times(timezones=zones.filter(has_one_offset)),
        st.timedeltas(),
        st.decimals(allow_nan=False),
        st.uuids(),
    )


def has_one_offset(zone: tzinfo | None) -> bool:
    """Return whether a time without a date can be serialised with this zone."""
    return not isinstance(zone, ZoneInfo) or zone.key is not None


def values() -> st.SearchStrategy[Any]:
    """Draw lists, tuples and dicts of atoms."""
    return st.recursive(
        atoms(),
        lambda inner: st.one_of(
            st.lists(inner, max_size=4),
            st.lists(inner, max_size=4).map(tuple),
            st.dictionaries(atoms(), inner, max_size=3),
        ),
        max_leaves=12,
    )


@settings(deadline=None, max_examples=examples(300))
@given(values())
def test_random_values_survive_a_round_trip(value: Any) -> None:
    """The values are nested and mixed."""
    assert not changed(value), there_and_back(value)


class Colour(TextChoices):
    """Django choices of text."""

    RED = "red"


class Size(IntegerChoices):
    """Django choices of integers."""

    LARGE = 3


class Word(str, Enum):  # noqa: UP042 - what users have, and not the same
    """A str enum whose __str__ differs from its value."""

    YES = "yes"


Point = namedtuple("Point", "x y")
Level = IntEnum("Level", "LOW HIGH")
Name = StrEnum("Name", "ANNE")


class Percent(float):
    """A subclass of float."""


class Clock(datetime):
    """A subclass of datetime, as libraries have."""


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (mark_safe("<b>"), "<b>"),
        (Colour.RED, "red"),
        (Size.LARGE, 3),
        (Level.HIGH, 2),
        (Name.ANNE, "anne"),
        (Word.YES, "yes"),
        (Percent(0.5), 0.5),
        (Clock(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)),
        (Point(1, (2,)), (1, (2,))),
        (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        (defaultdict(list, a=[1]), {"a": [1]}),
        ({Colour.RED: 1, Level.LOW: 2}, {"red": 1, 1: 2}),
        ({mark_safe("$tuple"): 1}, {"$tuple": 1}),
        (MappingProxyType({"a": ()}), {"a": ()}),
        (range(3), [0, 1, 2]),
        (bytearray(b"ab"), b"ab"),
        (memoryview(b"ab"), b"ab"),
        (
            datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=1), "CET")),
            datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=1))),
        ),
    ],
)
def test_subclasses_come_back_as_their_base_type(given: Any, kept: Any) -> None:
    """They come back as an equal value of the base type, alone and nested."""
    assert is_same(there_and_back(given), kept)
    assert is_same(there_and_back([{"a": (given,)}]), [{"a": (kept,)}])


def test_named_time_zone_is_kept() -> None:
    """So that adding a day is right across a clock change."""
    evening = there_and_back(datetime(2026, 10, 24, 20, tzinfo=ZURICH))
    assert evening.tzinfo is ZURICH
    assert (evening + timedelta(days=1)).utcoffset() == timedelta(hours=1)


@pytest.fixture
def digits_without_limit() -> Iterator[None]:
    """Let this process write integers of any size."""
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    yield
    sys.set_int_max_str_digits(before)


@pytest.mark.parametrize("sign", [1, -1])
def test_integers_written_without_a_limit_are_read_with_one(
    sign: int, digits_without_limit: None
) -> None:
    """The limit on digits is a setting of each process."""
    large = [sign * (10**n + 7) for n in (700, 4300, 50_001)]
    assert codec.is_plain(large)
    written = codec.write(large)
    assert b"$int" not in written
    sys.set_int_max_str_digits(640)
    assert codec.read(written) == large


INTO: dict[str, Callable[[Any], Any]] = {
    "list": lambda inner: [inner],
    "tuple": lambda inner: (inner,),
    "dict": lambda inner: {"a": inner},
    "keys": lambda inner: {1: inner},
}


def nested(kind: str, levels: int) -> Any:
    """Nest lists, or another container, this many levels deep."""
    value: Any = 1
    for _ in range(levels):
        value = INTO[kind](value)
    return value


@pytest.mark.parametrize("kind", INTO)
def test_nesting_beyond_the_limit_is_refused(kind: str) -> None:
    """The limit is the same for every container and every depth of the stack."""
    assert not changed(nested(kind, MOST_LEVELS))
    for levels in (MOST_LEVELS + 1, 100_000):
        assert not codec.is_plain(nested(kind, levels))
        with pytest.raises(
            NotEncodable, match="nested more than 100 levels deep, or contains itself"
        ):
            codec.encode(nested(kind, levels))


def test_value_that_contains_itself_is_refused() -> None:
    """Even if it does so twice, which makes 2 ** 100 paths."""
    a_list: list[Any] = [1]
    a_list += [a_list, a_list]
    a_dict: dict[Any, Any] = {}
    a_dict["a"] = a_dict["b"] = ({2: a_dict},)
    for value in (a_list, a_dict):
        assert not codec.is_plain(value)
        with pytest.raises(NotEncodable, match="contains itself"):
            codec.encode(value)


class Place(tzinfo):
    """A time zone without a key, whose offset depends on the date."""

    def utcoffset(self, moment: datetime | None) -> timedelta | None:
        """Return None without a date."""
        return timedelta(hours=1) if moment else None

    def tzname(self, moment: datetime | None) -> str:
        """Return a name that no zone can be found by."""
        return "here"

    def dst(self, moment: datetime | None) -> timedelta | None:
        """Return None."""
        return None


class Twin(str):
    """A str that a dict can hold next to an equal one."""

    __slots__ = ()
    __hash__ = object.__hash__


@pytest.mark.parametrize(
    ("value", "path", "problem"),
    [
        ([0, float("nan")], [1], "is nan, a number that JSON does not have"),
        ({"a": (float("-inf"),)}, ["a", 0], "is -inf"),
        ([Percent("inf")], [0], "is inf"),
        ([time(1, tzinfo=Place())], [0], "gives no offset: use zoneinfo"),
        ({1: {"x": {2}}}, [1, "x"], ""),
        ([{frozenset(): 1}], [0, frozenset()], ""),
        ([MultiValueDict({"a": [1, 2]})], [0], ""),
        ([1j], [0], ""),
    ],
)
def test_unserializable_value_is_refused_with_its_path(
    value: Any, path: list[Any], problem: str
) -> None:
    """No value is changed silently."""
    with pytest.raises(NotEncodable) as caught:
        codec.encode(value)
    assert caught.value.path == path
    assert problem in caught.value.problem


def test_two_keys_with_the_same_text_are_refused() -> None:
    """JSON would keep only the later one."""
    with pytest.raises(NotEncodable, match="two keys of the same text"):
        codec.encode({"a": 1, Twin("a"): 2})


@pytest.mark.parametrize("value", [float("nan"), [float("inf")], {"a": -float("inf")}])
def test_numbers_outside_json_are_not_written(value: Any) -> None:
    """Even if the values were not checked one by one, because `NaN` is no JSON."""
    assert codec.is_plain(value)
    with pytest.raises(ValueError, match="Out of range float"):
        codec.write(value)


@pytest.mark.parametrize(
    "written",
    [
        b"",
        b"[",
        b"[1] ",
        b"[1]2",
        b"\xff",
        b'{"$unheard-of":1}',
        b'{"$date":"2026-13-01"}',
        b'{"$datetime":["2026-01-01",0,"No/Where"]}',
        b'{"$dict":[[[1],2]]}',
        b"[" * 100_000,
    ],
)
def test_invalid_data_is_not_read(written: bytes) -> None:
    """Any of these exceptions is right, as long as no object is created."""
    with pytest.raises((ValueError, LookupError, TypeError, RecursionError)):
        codec.read(written)
