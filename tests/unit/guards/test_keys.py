"""Keys: equal calls have equal keys, and different calls different ones."""

import traceback
from collections import OrderedDict
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from hashlib import sha256
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from django.db.models import TextChoices
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker import InSequence, Limit, Lock, Rate, Unique
from stoker.compat import DjangoTask, TaskContext
from stoker.exceptions import InvalidTaskOption, NotSerializable
from stoker.guards.keys import UniqueClaim, needs_of, unique_of
from stoker.models.need import Need, NewNeed
from stoker.tasks.decorator import absent_task, task
from stoker.tasks.task import Task

from tests.examples import examples

pytestmark = pytest.mark.unit


class Color(TextChoices):
    RED = "red", "Red"


class Number(IntEnum):
    SEVEN = 7


def function(feed: Any, tenant: Any = 1, *, note: Any = None) -> None: ...


def other_function(feed: Any, tenant: Any = 1, *, note: Any = None) -> None: ...


def flexible(first: Any, /, *rest: Any, **more: Any) -> None: ...


def with_context(context: TaskContext, feed: Any) -> None: ...


SENTINEL = object()


def with_odd_default(feed: Any, mode: Any = SENTINEL) -> None: ...


def needed(made: Any, *args: Any, **kwargs: Any) -> NewNeed:
    """Return the only need of a job."""
    [need] = needs_of(made, args, kwargs)
    return need


def claimed(made: Any, *args: Any, **kwargs: Any) -> UniqueClaim:
    claim = unique_of(made, args, kwargs)
    assert claim is not None
    return claim


def locked(key: Any, **changes: Any) -> Task[..., Any]:
    return task(lock=Lock(key))(function).using(**changes)


def plain_task() -> DjangoTask:
    return DjangoTask(
        func=function,
        priority=0,
        backend="default",
        queue_name="default",
        run_after=None,
        takes_context=False,
    )


# -- tasks without guards -------------------------------------------------------------------------


@pytest.mark.parametrize("made", [task(function), plain_task(), absent_task("shop.tasks.send")])
def test_task_without_guards_has_no_needs(made: Any) -> None:
    assert needs_of(made, (7,), {}) == ()
    assert unique_of(made, (7,), {}) is None


# -- what a job needs -----------------------------------------------------------------------------


def test_needs_contain_the_values_of_their_guards() -> None:
    made = task(
        unique=Unique("x"),
        sequence=InSequence("{feed}", after_failure="halt"),
        rate=(Rate("100/m", "api", burst=5, weight=2), Rate("7/30s")),
        limit=(Limit(4, "smtp", on_busy="retry", retry_delay=timedelta(seconds=1.5)), Limit(9)),
        lock=Lock("feed {feed}", on_busy="skip"),
    )(function)
    told = [need._replace(key_id=UUID(int=0)) for need in needs_of(made, (7,), {})]
    nobody = UUID(int=0)
    path = f"{__name__}.function"
    assert told == [
        NewNeed(nobody, "lock", "lock feed 7", on_busy="skip"),
        NewNeed(nobody, "limit", "limit smtp", places=4, on_busy="retry", retry_us=1_500_000),
        NewNeed(nobody, "limit", f"limit {path}", places=9),
        NewNeed(
            nobody,
            "rate",
            "rate api per 60 s",
            places=100,
            weight=2,
            period_us=60_000_000,
            burst=5,
        ),
        NewNeed(nobody, "rate", f"rate {path} per 30 s", places=7, period_us=30_000_000),
        NewNeed(nobody, "sequence", "sequence 7", halts=True),
    ]
    assert {need.kind for need in told} == set(Need.Kind.values)


def test_unique_claim_contains_the_values_of_its_guard() -> None:
    made = task(
        unique=Unique("{feed}", on_conflict="postpone", delay=30, longest_wait=timedelta(hours=1))
    )(function)
    claim = claimed(made, 7)
    assert claim == UniqueClaim(
        claim.key_id, "unique 7", "finished", 0, "postpone", 30_000_000, 3_600_000_000, True
    )
    brief = claimed(made.using(unique=Unique(until="started", within=0.25)), 7)
    assert brief[2:] == ("started", 250_000, "keep", 0, None, False)


@pytest.mark.parametrize(
    ("unique", "blocks"),
    [
        (Unique("k"), False),
        (Unique("k", on_conflict="raise"), False),
        (Unique("k", on_conflict="after"), True),
        (Unique("k", on_conflict="replace"), True),
        (Unique("k", on_conflict="postpone", delay=1), True),
        (Unique("k", on_conflict="replace", until="started"), False),
        (Unique(on_conflict="after"), True),
    ],
)
def test_unique_key_adds_a_sequence_if_its_job_may_follow_a_running_one(
    unique: Unique, blocks: bool
) -> None:
    made = task(unique=unique, lock=Lock("k"))(function)
    needs = needs_of(made, (7,), {})
    assert claimed(made, 7).blocks_overlap is blocks
    kinds = ["sequence", "lock"] if blocks else ["lock"]
    assert [(need.kind, need.on_busy) for need in needs] == [(kind, "wait") for kind in kinds]
    if blocks:
        overlap, lock = needs
        assert overlap.name.startswith("unique ")
        assert len({overlap.key_id, lock.key_id, claimed(made, 7).key_id}) == 3
        assert overlap.key_id == needs_of(made, (7,), {})[0].key_id
        assert (overlap.key_id != needs_of(made, (8,), {})[0].key_id) is (unique.key is None)


def test_sequence_of_a_unique_key_has_the_scope_of_the_key() -> None:
    def overlap(made: Any, scope: Any) -> UUID:
        unique = Unique("k", on_conflict="after", scope=scope)
        return needed(made.using(unique=unique), 7).key_id

    one, other = task(function), task(other_function)
    assert overlap(one, "global") == overlap(other, "global")
    assert overlap(one, "task") != overlap(other, "task")


def test_weight_can_be_a_callable_of_the_arguments() -> None:
    made = task(rate=Rate("10/s", weight=lambda feed, **_: len(feed)))(function)
    assert needed(made, "abc", note=1).weight == 3
    for wrong in ("", "x" * 11):
        with pytest.raises(InvalidTaskOption, match=r"weight=(0|11)\)"):
            needed(made, wrong)
    with pytest.raises(InvalidTaskOption, match=r"weight=2\.5\): write a whole number"):
        needed(made.using(rate=Rate("10/s", weight=lambda feed: 2.5)), 7)  # type: ignore[arg-type, return-value] # that is the point


def test_stricter_of_two_guards_with_one_key_counts() -> None:
    made = task(
        limit=(Limit(4, "{feed}"), Limit(2, "{tenant}", on_busy="skip")),
        rate=(Rate("10/s", "{feed}", weight=3, burst=9), Rate("20/s", "{tenant}", burst=5)),
    )(function)
    assert len(needs_of(made, (7, 8), {})) == 4
    limit, rate = needs_of(made, (7, 7), {})
    assert (limit.places, limit.on_busy) == (2, "wait")
    assert (rate.places, rate.weight, rate.burst) == (10, 3, 5)


# -- which tasks share a key ----------------------------------------------------------------------


GUARDED: dict[str, Any] = {
    "lock": Lock,
    "limit": lambda key: Limit(4, key),
    "rate": lambda key: Rate("1/s", key),
    "sequence": InSequence,
}


@pytest.mark.parametrize("option", GUARDED)
@pytest.mark.parametrize("key", ["smtp", "{feed}", lambda feed: "x", lambda feed: (feed, "x")])
def test_tasks_with_the_same_key_share_it(option: str, key: Any) -> None:
    guard = {option: GUARDED[option](key)}
    assert needed(task(**guard)(function), 7) == needed(task(**guard)(other_function), 7)


def test_lock_without_a_key_applies_to_the_same_call() -> None:
    made = task(lock=Lock())(function)
    assert needed(made, 7) == needed(made, feed=7)
    assert needed(made, 7).key_id != needed(made, 8).key_id
    assert needed(made, 7).key_id != needed(task(lock=Lock())(other_function), 7).key_id


@pytest.mark.parametrize("option", ["limit", "rate"])
def test_limit_or_rate_without_a_key_applies_to_the_task(option: str) -> None:
    guard = {option: GUARDED[option](None)}
    one, other = task(**guard)(function), task(**guard)(other_function)
    assert needed(one, 7) == needed(one, 8) == needed(one.using(priority=5), 7, note=1)
    assert needed(one, 7).key_id != needed(other, 7).key_id
    assert needed(one, 7).name.startswith(f"{option} {__name__}.function")


def test_unique_key_belongs_to_the_task_unless_it_is_global() -> None:
    one, other = (
        task(unique=Unique("{feed}"))(function),
        task(unique=Unique("{feed}"))(other_function),
    )
    assert claimed(one, 7).key_id != claimed(other, 7).key_id
    worldwide = Unique("{feed}", scope="global")
    assert claimed(one.using(unique=worldwide), 7) == claimed(other.using(unique=worldwide), 7)
    assert claimed(one.using(unique=worldwide), 7).key_id != claimed(one, 7).key_id


def test_kinds_of_guards_do_not_share_keys() -> None:
    made = task(
        unique=Unique("k", scope="global", on_conflict="after"),
        **{name: make("k") for name, make in GUARDED.items()},
    )(function)
    ids = [need.key_id for need in needs_of(made, (7,), {})]
    assert len({*ids, claimed(made, 7).key_id}) == 6


def test_rates_share_a_key_only_when_they_count_the_same_way() -> None:
    def key_id(rate: Rate) -> UUID:
        return needed(task(rate=rate)(function), 7).key_id

    assert key_id(Rate("1/m", "k")) == key_id(Rate("99/60s", "k"))
    assert key_id(Rate("1/m", "k", burst=1)) == key_id(Rate("5/m", "k", burst=4))
    assert len({key_id(Rate(rate, "k")) for rate in ("1/m", "1/h", "1/61s")}) == 3
    assert key_id(Rate("1/m", "k")) != key_id(Rate("1/m", "k", burst=1))


def test_text_keys_never_equal_keys_of_other_kinds() -> None:
    """Text that contains the separators does not equal a key made of parts."""
    path = f"{__name__}.function"
    texts = ["", "x", "x\0", "\0x", "task", f"task\0{path}\0", "7", "(7,)", "[7]", '{"$tuple":[7]}']
    ids = {needed(locked(lambda feed, text=text: text), 7).key_id for text in texts}
    ids.add(needed(locked(None), 7).key_id)
    ids.add(needed(locked(lambda feed: (7,)), 7).key_id)
    assert len(ids) == len(texts) + 2


# -- format strings and callables -----------------------------------------------------------------


def test_format_string_reads_arguments_by_name() -> None:
    made = locked("{feed[a]} {feed[b].year} {tenant:03} {note!r}")
    call = {"feed": {"a": 1, "b": date(2026, 1, 1)}}
    assert needed(made, **call).name == "lock 1 2026 001 None"
    assert needed(made, call["feed"], 22, note="x").name == "lock 1 2026 022 'x'"
    assert needed(locked("{{feed}} 100%"), 7).name == "lock {feed} 100%"


def test_arguments_by_position_and_by_name_give_the_same_key() -> None:
    made = locked("{feed} {tenant} {note}")
    assert needed(made, 7) == needed(made, feed=7) == needed(made, 7, 1, note=None)
    assert needed(made, 7).key_id != needed(made, 7, 2).key_id


def test_context_is_not_part_of_the_key() -> None:
    made = task(takes_context=True, lock=Lock("{feed}"), unique=Unique())(with_context)
    assert needed(made, 7) == needed(made, feed=7)
    assert claimed(made, 7) == claimed(made, feed=7)
    assert claimed(made, 7) != claimed(made, 8)
    by_call = made.using(lock=Lock(lambda feed: feed))
    assert needed(by_call, 7) == needed(made, 7)


def test_args_and_kwargs_are_part_of_the_key() -> None:
    made = task(unique=Unique(), lock=Lock("{rest[0]} {more[x]}"))(flexible)
    assert needed(made, 1, 2, x=3).name == "lock 2 3"
    assert claimed(made, 1, 2, x=3, y=4) == claimed(made, 1, 2, y=4, x=3)
    calls: list[tuple[Any, dict[str, Any]]] = [
        ((1, 2), {"x": 3}),
        ((1, 2, 3), {}),
        ((1, (2, 3)), {}),
        ((1, [2, 3]), {}),
        ((1,), {"rest": (2, 3)}),
        ((1,), {"first": 2}),
        ((1,), {"more": {"first": 2}}),
        ((1,), {}),
    ]
    assert len({claimed(made, *args, **kwargs).key_id for args, kwargs in calls}) == len(calls)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("feed 7", "feed 7"),
        (7, "7"),
        (-(2**70), str(-(2**70))),
        (Number.SEVEN, "7"),
        (Color.RED, "red"),
        (UUID(int=5), "00000000-0000-0000-0000-000000000005"),
    ],
)
def test_callable_key_can_return_text_number_or_uuid(given: Any, text: str) -> None:
    """Each equals a key with its text, so tasks can share it either way."""
    made = locked(lambda feed, tenant=1, note=None: given)
    assert needed(made, 7) == needed(locked("{feed}"), text)
    assert needed(made, 7).name == f"lock {text}"


def test_callable_key_can_return_a_tuple() -> None:
    tuples: list[Any] = [
        (), (1,), ("1",), (1, 2), (12,), ("1, 2",), ((1,), 2), (1, None), (True,), (UUID(int=1),),
        (date(2026, 1, 1),), (Decimal(1),), ([1],),
    ]  # fmt: skip
    ids = {needed(locked(lambda feed, given=given: given), 7).key_id for given in tuples}
    assert len(ids) == len(tuples)
    assert needed(locked(lambda feed: ("a", 1)), 7).name == "lock a, 1"


def test_callable_key_returning_none_disables_the_guard() -> None:
    keys: dict[str, Any] = {name: make(lambda feed: feed) for name, make in GUARDED.items()}
    made = task(unique=Unique(lambda feed: feed, on_conflict="after"), **keys)(function)
    assert len(needs_of(made, (7,), {})) == 5
    assert needs_of(made, (None,), {}) == ()
    assert unique_of(made, (None,), {}) is None


@pytest.mark.parametrize("given", [True, False, 1.5, [1], {"a": 1}, b"x", object(), Lock()])
def test_callable_key_of_another_type_is_refused(given: Any) -> None:
    with pytest.raises(
        InvalidTaskOption, match=r"lock: the key of .*function returned .* a str, an i"
    ):
        needed(locked(lambda feed: given), 7)


def test_tuple_key_with_an_unserializable_value_is_refused() -> None:
    with pytest.raises(NotSerializable, match=r"lock: what the key of .* returned .* type set"):
        needed(locked(lambda feed: ("a", {1})), 7)


def test_error_in_a_callable_key_has_a_note() -> None:
    def fail(feed: Any) -> str:
        raise LookupError("no such feed")

    for made in (
        task(lock=Lock(fail))(function),
        task(rate=Rate("9/s", weight=fail))(function),  # type: ignore[arg-type] # raises before
        task(unique=Unique(fail))(function),
    ):
        with pytest.raises(LookupError, match=r"no such feed") as caught:
            _ = needs_of(made, (7,), {}), unique_of(made, (7,), {})
        told = "".join(traceback.format_exception_only(caught.value))
        option = next(name for name in ("lock", "rate", "unique") if getattr(made, name))
        part = "weight" if option == "rate" else "key"
        assert f"Raised by the {part} of {option}, an option of {__name__}.function" in told


def test_error_in_a_format_string_has_a_note() -> None:
    with pytest.raises(AttributeError) as caught:
        needed(locked("{feed.id}"), 7)
    assert "Raised by the key of lock" in "".join(caught.value.__notes__)


def test_callable_key_gets_the_arguments_that_it_names() -> None:
    seen: list[Any] = []

    def key(tenant: int, feed: int, other: str = "x") -> str:
        seen.append((tenant, feed, other))
        return "k"

    needed(locked(key), 7, tenant=2)
    needed(locked(key), feed=7)
    assert seen == [(2, 7, "x"), (1, 7, "x")]


def test_callable_key_with_args_and_kwargs_gets_all_arguments() -> None:
    seen: list[Any] = []

    def key(*args: Any, **kwargs: Any) -> str:
        seen.append((args, kwargs))
        return "k"

    needed(locked(key), feed=7, tenant=2)
    assert seen == [((7, 2), {"note": None})]


@pytest.mark.parametrize("guard", [{"lock": Lock(lambda e: e)}, {"unique": Unique(lambda e: e)}])
def test_callable_key_naming_no_parameter_is_refused(guard: dict[str, Any]) -> None:
    with pytest.raises(InvalidTaskOption, match="names 'e', which is not a parameter"):
        task(**guard)(function)


def test_weight_naming_no_parameter_is_refused() -> None:
    with pytest.raises(InvalidTaskOption, match="the callable for its weight names 'size'"):
        task(rate=Rate("5/s", weight=lambda size: size))(function)


# -- names for screens ----------------------------------------------------------------------------


def test_key_names_fit_every_database() -> None:
    assert needed(locked("{feed}"), "x" * 1000).name == "lock " + "x" * 250
    assert needed(locked("{feed}"), "a\0b\nc\ud800\U0001f600é").name == "lock a?b?c??é"
    rate = task(rate=Rate("1/s", "{feed}"))(function)
    assert needed(rate, "x" * 1000).name.endswith("x per 1 s")
    assert len(needed(rate, "x" * 1000).name) == 255
    assert needed(locked("{feed}"), "x" * 1000) != needed(locked("{feed}"), "x" * 1001)


def test_key_names_hide_arguments_of_the_call() -> None:
    name = claimed(task(unique=Unique())(function), "secret").name
    assert name.startswith(f"unique {__name__}.function ")
    assert "secret" not in name


# -- the task with all its arguments --------------------------------------------------------------

UNIQUE = task(unique=Unique())(function)

ATOMS: list[Any] = [
    None, True, False, 0, 1, -1, 0.0, -0.0, 1.0, 1.5, "", "1", "None", "true", "[]", b"", b"1",
    Decimal(1), Decimal("1.0"), UUID(int=1), timedelta(1), timedelta(seconds=1), date(2026, 1, 1),
    datetime(2026, 1, 1),  # noqa: DTZ001 - one of the cases
    datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))),
    datetime(2026, 1, 1, 1, tzinfo=ZoneInfo("Europe/Vienna")),
    2**2001, "$dict", "\ud83d\ude00", "\U0001f600", "a\0",
]  # fmt: skip


def kind_and_content(value: Any) -> Any:
    """Return what identifies a value, computed differently than in the code under test."""
    if isinstance(value, dict):
        pairs = ((kind_and_content(key), kind_and_content(one)) for key, one in value.items())
        return ("dict", frozenset(pairs))
    if isinstance(value, list | tuple):
        return (type(value).__name__, tuple(map(kind_and_content, value)))
    zone = repr(getattr(value, "tzinfo", None))
    return (type(value).__name__, repr(value), zone)


def turned(value: Any) -> Any:
    """Return the same value with the items of each dict reversed."""
    if isinstance(value, dict):
        return {key: turned(one) for key, one in reversed(value.items())}
    return type(value)(map(turned, value)) if isinstance(value, list | tuple) else value


ATOM = st.sampled_from(ATOMS)
HASHABLE = st.one_of(ATOM, st.tuples(ATOM), st.tuples(ATOM, ATOM))
VALUES = st.recursive(
    ATOM,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner),
        st.tuples(inner, inner),
        st.dictionaries(st.sampled_from(["a", "b", "$dict", "$tuple"]), inner, max_size=3),
        st.dictionaries(HASHABLE, inner, max_size=3),
    ),
    max_leaves=6,
)
CALLS = st.lists(VALUES, min_size=3, max_size=3)


@settings(deadline=None, max_examples=examples(300))
@given(CALLS)
def test_equal_calls_have_equal_keys(values: list[Any]) -> None:
    first, second, third = values
    one = claimed(UNIQUE, first, second, note=third)
    assert claimed(UNIQUE, note=turned(third), tenant=turned(second), feed=turned(first)) == one


@settings(deadline=None, max_examples=examples(500))
@given(CALLS, CALLS)
def test_different_calls_have_different_keys(one: list[Any], other: list[Any]) -> None:
    is_same = kind_and_content(one) == kind_and_content(other)
    ids = [claimed(UNIQUE, a, b, note=c).key_id for a, b, c in (one, other)]
    assert (ids[0] == ids[1]) is is_same


def test_different_values_have_different_keys() -> None:
    values: list[Any] = [
        *ATOMS,
        *([atom] for atom in ATOMS),
        *((atom,) for atom in ATOMS),
        *({atom: 1} for atom in ATOMS),
        {"$tuple": [1]},
        {"$dict": [[1, 2]]},
        {1: 2},
        {"$dict": 1, "a": 1},
        {},
    ]
    by_content = {kind_and_content(value): value for value in values}
    ids = {claimed(UNIQUE, value).key_id for value in by_content.values()}
    assert len(ids) == len(by_content) > 100


def test_default_has_the_same_key_as_its_value() -> None:
    assert claimed(UNIQUE, 7) == claimed(UNIQUE, 7, 1) == claimed(UNIQUE, feed=7, note=None)
    assert claimed(UNIQUE, 7).key_id != claimed(UNIQUE, 7, True).key_id


def test_unserializable_default_is_left_out_of_the_key() -> None:
    made = task(unique=Unique())(with_odd_default)
    assert claimed(made, 7) == claimed(made, feed=7) == claimed(made, 7, SENTINEL)
    assert claimed(made, 7).key_id != claimed(made, 7, None).key_id
    with pytest.raises(NotSerializable, match=r"Argument 'mode' of .*with_odd_default has a value"):
        claimed(made, 7, object())


def test_subclass_has_the_same_key_as_its_serialized_value() -> None:
    assert claimed(UNIQUE, Color.RED, Number.SEVEN) == claimed(UNIQUE, "red", 7)
    mapping: Mapping[str, Any] = OrderedDict(b=1, a=2)
    assert claimed(UNIQUE, mapping) == claimed(UNIQUE, {"a": 2, "b": 1})


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (
            {1, 2},
            r"Argument 'note' of .*function has a value of type set, which cannot be part",
        ),
        ([{"a": object()}], r"Argument 'note' of .*function has a value of type object"),
        (float("nan"), r"Argument 'note' of .*function is nan, a number that JSON does not have"),
    ],
)
def test_argument_without_a_possible_key_is_named_in_the_error(value: Any, sentence: str) -> None:
    with pytest.raises(NotSerializable, match=sentence):
        claimed(UNIQUE, 7, note=value)
    assert needed(locked("{feed}"), 7, note=value).name == "lock 7"


def test_key_ids_do_not_change_between_releases() -> None:
    """Keys are stored in databases. If they changed, old and new jobs would not guard against each
    other during a rolling deploy."""
    path = f"{__name__}.function".encode()
    made_of = {
        needed(locked("feed {feed}"), 7).key_id: b"lock\0text\0\0feed 7",
        needed(locked(None), 7).key_id: (
            b"lock\0arguments\0" + path + b'\0[["feed",7],["tenant",1],["note",null]]'
        ),
        needed(task(limit=Limit(3))(function), 7).key_id: b"limit\0task\0" + path + b"\0",
        needed(locked(lambda feed: (feed, "x")), 7).key_id: b'lock\0values\0\0{"$tuple":[7,"x"]}',
        needed(task(rate=Rate("9/m", "api"))(function), 7).key_id: (
            b"rate (60.0, True)\0text\0\0api"
        ),
        claimed(UNIQUE, {"b": 1, "a": 2}).key_id: (
            b"unique\0arguments\0" + path + b'\0[["feed",{"a":2,"b":1}],["tenant",1],["note",null]]'
        ),
    }
    for key_id, text in made_of.items():
        digest = sha256(text).hexdigest()[:32]
        assert key_id.hex == f"{digest[:12]}8{digest[13:16]}{key_id.hex[16:18]}{digest[18:]}"
        assert int(digest[16:18], 16) & 0x3F | 0x81 == int(key_id.hex[16:18], 16)
        assert key_id.version == 8
