"""Guards as users write them: mistakes are refused at once with a helpful message."""

import math
import pickle
import re
from datetime import timedelta
from typing import Any

import pytest

import stoker
from stoker import DuplicateJob, InSequence, Limit, Lock, Rate, Unique
from stoker.compat import DjangoTask, TaskContext
from stoker.exceptions import InvalidTaskOption, StokerError
from stoker.tasks.decorator import absent_task, task
from stoker.tasks.guards import names_in, signature_of_call
from stoker.tasks.options import CHANGES, GUARDS, OPTIONS, is_guarded

pytestmark = pytest.mark.unit


def function(feed_id: int, tenant_id: int = 1) -> None: ...


def with_context(context: TaskContext, feed_id: int) -> None: ...


def flexible(*args: Any, **kwargs: Any) -> None: ...


def bare() -> None: ...


def own_key(feed_id: int, tenant_id: int = 1) -> int:
    return feed_id


WRONG: list[tuple[type, dict[str, Any], str]] = [
    (Unique, {"key": ""}, r"Unique\(key=''\): it is empty"),
    (Unique, {"key": 3}, r"Unique\(key=3\): it is not a text. Write a text such as"),
    (Lock, {"key": b"x"}, r"a callable of the arguments"),
    (Lock, {"key": "{"}, r"Lock\(key='\{'\): .*braces doubled"),
    (Lock, {"key": "x}"}, r"braces doubled"),
    (Lock, {"key": "feed:{}"}, r"\{\} does not begin with the name of a parameter"),
    (Lock, {"key": "feed:{0}"}, r"\{0\} does not begin with"),
    (Lock, {"key": "{a!x}"}, r"no conversion !x"),
    (Lock, {"key": "{a:{}}"}, r"does not begin with"),
    (Unique, {"scope": "all"}, r'scope=\'all\'\): write "task" or "global"'),
    (Unique, {"until": "done"}, r'write "finished" or "started"'),
    (Unique, {"on_conflict": "skip"}, r'write "keep" or "replace" or'),
    (Unique, {"on_conflict": ["keep"]}, r'write "keep" or "replace" or'),
    (Unique, {"within": 0}, r"within=0\): write a number of seconds above 0, or a timedelta"),
    (Unique, {"within": "60"}, r"a number of seconds above 0"),
    (Unique, {"within": True}, r"a number of seconds above 0"),
    (Unique, {"within": math.nan}, r"a number of seconds above 0"),
    (Unique, {"within": math.inf}, r"a number of seconds above 0"),
    (Unique, {"within": timedelta(0)}, r"a number of seconds above 0"),
    (Unique, {"within": 3, "on_conflict": "replace"}, r'write on_conflict="keep" or "raise"'),
    (Unique, {"within": 3, "on_conflict": "postpone", "delay": 3}, r'"keep" or "raise"'),
    (Unique, {"within": 3, "on_conflict": "after"}, r'"keep" or "raise"'),
    (Unique, {"until": "started", "on_conflict": "after"}, r"leave until out"),
    (Unique, {"on_conflict": "postpone"}, r"as in delay=30"),
    (Unique, {"on_conflict": "postpone", "longest_wait": 3}, r"as in delay=30"),
    (Unique, {"delay": 3}, r'Unique\(delay=...\) has an effect only with on_conflict="postpone"'),
    (
        Unique,
        {"longest_wait": 3},
        r"Unique\(longest_wait=...\) has an effect only with on_conf",
    ),
    (Unique, {"on_conflict": "postpone", "delay": 9, "longest_wait": 3}, r"not shorter than delay"),
    (Unique, {"on_conflict": "postpone", "delay": 0}, r"delay=0\): write a number"),
    (Lock, {"on_busy": "fail"}, r'on_busy=\'fail\'\): write "wait" or "skip" or "retry"'),
    (Lock, {"retry_delay": 5}, r'only with on_busy="retry"'),
    (
        Lock,
        {"on_busy": "skip", "retry_delay": timedelta(seconds=1)},
        r'only with on_busy="retry"',
    ),
    (Lock, {"on_busy": "retry", "retry_delay": -1}, r"retry_delay=-1\): write a number"),
    (Limit, {"n": 0}, r"Limit\(n=0\): write a whole number, at least 1"),
    (Limit, {"n": 2.0}, r"a whole number"),
    (Limit, {"n": True}, r"a whole number"),
    (Limit, {"n": "smtp", "key": "smtp"}, r"a whole number"),
    (Limit, {"n": 10**10}, r"a whole number"),
    (Limit, {"n": 4, "on_busy": "later"}, r'write "wait" or "skip" or "retry"'),
    (Limit, {"n": 4, "key": 5}, r"Limit\(key=5\)"),
    (Rate, {"rate": "10/s", "weight": 11}, r"weight=11\): such a job could never start.* 10 at m"),
    (Rate, {"rate": "10/s", "burst": 3, "weight": 4}, r"3 at most"),
    (Rate, {"rate": "10/s", "weight": 0}, r"weight=0\): write a whole number"),
    (Rate, {"rate": "10/s", "weight": "1"}, r"a whole number"),
    (Rate, {"rate": "10/s", "burst": 0}, r"burst=0\): write a whole number"),
    (Rate, {"rate": "10/s", "key": ("a",)}, r"Rate\(key="),
    (InSequence, {"key": None}, r"write the key under which"),
    (InSequence, {"key": 7}, r"InSequence\(key=7\)"),
    (InSequence, {"key": "a", "after_failure": "stop"}, r'write "go_on" or "halt"'),
]


@pytest.mark.parametrize(("kind", "words", "sentence"), WRONG)
def test_invalid_guard_is_refused_at_construction(
    kind: type, words: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InvalidTaskOption, match=sentence):
        kind(**words)


@pytest.mark.parametrize(
    "rate",
    ["100", "100/", "/m", "100/w", "100/month", "0/s", "-1/s", "1.5/s", "10/0s", "10 /s", "10/s ",
     "10/367d", "10000000000/s", "10/0.5s", "\u0661/s", "", 100, None, ["1/s"], b"1/s"],
)  # fmt: skip
def test_invalid_rate_is_refused(rate: Any) -> None:
    with pytest.raises(InvalidTaskOption, match=r"starts in which period.*100/m.*100/30s"):
        Rate(rate)


@pytest.mark.parametrize(
    ("rate", "starts", "period_seconds"),
    [
        ("100/m", 100, 60),
        ("10/s", 10, 1),
        ("5000/h", 5000, 3600),
        ("1000/d", 1000, 86400),
        ("100/30s", 100, 30),
        ("20/5m", 20, 300),
        ("1/366d", 1, 366 * 86400),
    ],
)
def test_rate_is_parsed_as_starts_per_period(rate: str, starts: int, period_seconds: float) -> None:
    read = Rate(rate)
    assert (read.starts, read.period_seconds, read.most) == (starts, period_seconds, starts)
    assert Rate(rate, burst=7).most == 7


def test_guards_compare_hash_and_pickle_by_value() -> None:
    assert Lock("smtp") == Lock("smtp") != Limit(1, "smtp")
    assert len({Unique("a"), Unique("a"), Unique("a", scope="global")}) == 2
    assert pickle.loads(pickle.dumps(Rate("10/s", burst=3))) == Rate("10/s", burst=3)
    with pytest.raises(AttributeError):
        Lock("smtp").key = "imap"  # type: ignore[misc] # that is the point


@pytest.mark.parametrize(
    ("template", "names"),
    [
        ("smtp", set()),
        ("{{feed_id}}", set()),
        ("{a}:{b.c}:{d[0]}:{e!r:>{f}}", {"a", "b", "d", "e", "f"}),
    ],
)
def test_names_in_finds_the_names_of_a_template(template: str, names: set[str]) -> None:
    assert names_in(template) == names


@pytest.mark.parametrize("option", ["unique", "lock", "limit", "rate", "sequence"])
def test_key_naming_no_parameter_is_refused_at_task_definition(option: str) -> None:
    made: dict[str, Any] = {
        "unique": Unique("{feed}"),
        "lock": Lock("{feed}"),
        "limit": (Limit(4, "{feed_id}"), Limit(4, "{feed}")),
        "rate": Rate("1/s", "{feed}"),
        "sequence": "{feed}",
    }
    sentence = (
        f"{option}: the key '{{feed}}' names 'feed', which is not a parameter of "
        f"{__name__}.function: write one of feed_id, tenant_id."
    )
    with pytest.raises(InvalidTaskOption, match=re.escape(sentence)):
        task(**{option: made[option]})(function)
    with pytest.raises(InvalidTaskOption, match=re.escape(sentence)):
        task(function).using(**{option: made[option]})  # type: ignore[misc] # chosen by name


def test_key_naming_the_context_is_refused() -> None:
    task(takes_context=True, lock=Lock("{feed_id}"))(with_context)
    with pytest.raises(InvalidTaskOption, match=r"names 'context'.*: write one of feed_id\."):
        task(takes_context=True, lock=Lock("{context}"))(with_context)


def test_key_naming_a_parameter_of_a_function_without_any_is_refused() -> None:
    with pytest.raises(InvalidTaskOption, match=r"names 'x'.*it has no parameters"):
        task(lock=Lock("{x}"))(bare)


def test_key_can_name_args_and_kwargs() -> None:
    task(lock=Lock("{args[0]} {kwargs[feed_id]}"))(flexible)
    with pytest.raises(InvalidTaskOption, match=r"names 'feed_id'.*args, kwargs"):
        task(lock=Lock("{feed_id}"))(flexible)


def test_function_without_a_signature_is_accepted() -> None:
    def strange() -> None: ...

    strange.__signature__ = "none"  # type: ignore[attr-defined] # a function may have one
    assert signature_of_call(strange, False) is None


@pytest.mark.parametrize(
    ("option", "wrong", "advice"),
    [
        ("unique", True, 'write unique=Unique("feed:{feed_id}")'),
        ("unique", "feed", 'write unique=Unique("feed")'),
        ("unique", Unique, "write unique=Unique("),
        ("lock", "smtp", 'write lock=Lock("smtp")'),
        ("lock", Limit(1), "write lock=Lock("),
        ("lock", (Lock("a"), Lock("b")), "write lock=Lock("),
        ("limit", 3, "write limit=Limit(3), or several in a tuple"),
        ("limit", (Limit(4), 5), "or several in a tuple"),
        ("rate", "9/s", 'write rate=Rate("9/s"), or several in a tuple'),
        ("rate", Limit(4), "or several in a tuple"),
        ("sequence", 5, 'write sequence="account:{account_id}"'),
        ("sequence", Lock("a"), "or InSequence("),
        ("sequence", "", "it is empty"),
    ],
)
def test_option_refuses_guards_of_other_kinds(option: str, wrong: Any, advice: str) -> None:
    with pytest.raises(InvalidTaskOption, match=re.escape(advice)):
        task(**{option: wrong})(function)


@pytest.mark.parametrize(
    ("option", "twins"),
    [
        ("limit", (Limit(2), Limit(5))),
        ("limit", (Limit(2, "a"), Limit(5, "b"), Limit(3, "a", on_busy="skip"))),
        ("limit", (Limit(2, own_key), Limit(5, own_key))),
        ("rate", (Rate("2/m"), Rate("5/60s"))),
        ("rate", (Rate("2/m", "a", burst=1), Rate("5/m", "a", burst=2))),
    ],
)
def test_two_guards_with_the_same_count_are_refused(option: str, twins: Any) -> None:
    with pytest.raises(InvalidTaskOption, match=r"two of them count the same"):
        task(**{option: twins})(function)


def test_rates_of_several_periods_under_one_key_are_accepted() -> None:
    rates = (Rate("2/s"), Rate("50/m"), Rate("50/m", burst=5), Rate("50/m", "a"))
    assert task(rate=rates)(function).rate == rates


def test_single_limit_and_rate_become_tuples() -> None:
    made = task(limit=Limit(4), rate=Rate("1/s"), sequence="{feed_id}")(function)
    assert (made.limit, made.rate) == ((Limit(4),), (Rate("1/s"),))
    assert made.sequence == InSequence("{feed_id}")


def test_using_sets_guards_and_none_removes_them() -> None:
    guards: dict[str, Any] = {
        "unique": Unique(),
        "lock": Lock(),
        "limit": Limit(4),
        "rate": Rate("1/s"),
        "sequence": "all",
    }
    made = task(function).using(**guards)
    assert made == task(**guards)(function)
    assert made.using(timeout=3).lock == Lock()
    for name in guards:
        without = made.using(**{name: None})  # type: ignore[misc] # chosen by name
        assert getattr(without, name) is None
        assert all(getattr(without, other) for other in guards if other != name)
    assert made.using(**dict.fromkeys(guards)) == task(function)  # type: ignore[misc] # as above


def test_every_guard_is_an_option_and_a_change() -> None:
    assert set(GUARDS) <= set(OPTIONS)
    assert set(GUARDS) <= set(CHANGES)


def test_is_guarded_works_for_every_kind_of_task() -> None:
    assert not is_guarded(task(function))
    assert not is_guarded(task(limit=(), rate=())(function))
    assert not is_guarded(absent_task("shop.tasks.send"))
    plain = DjangoTask(
        func=function,
        priority=0,
        backend="default",
        queue_name="default",
        run_after=None,
        takes_context=False,
    )
    assert not is_guarded(plain)
    for name, guard in {
        "unique": Unique(),
        "lock": Lock(),
        "limit": Limit(4),
        "rate": Rate("1/s"),
        "sequence": "a",
    }.items():
        assert is_guarded(task(**{name: guard})(function)), name


def test_guarded_task_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(guarded)) == guarded


@task(unique=Unique("{feed_id}"), limit=(Limit(4, own_key),), sequence="a")
def guarded(feed_id: int, tenant_id: int = 1) -> None: ...


@pytest.mark.parametrize(
    ("strange", "meant"), [("rate_limit", "rate"), ("uniqe", "unique"), ("concurrency", "limit")]
)
def test_unknown_option_suggests_the_right_one(strange: str, meant: str) -> None:
    with pytest.raises(InvalidTaskOption, match=f"Did you mean '{meant}'"):
        task(**{strange: 1})(function)


def test_duplicate_job_has_the_existing_result() -> None:
    error = DuplicateJob("taken", "the result")
    assert isinstance(error, StokerError)
    assert (str(error), error.result) == ("taken", "the result")
    assert stoker.DuplicateJob is DuplicateJob
