"""Code that a type checker reads. It is never run.

A line with a comment that starts with ``E:`` must cause an error with the text that follows; every
other line must not.
"""

from datetime import UTC, datetime, timedelta
from typing import Any, assert_type
from uuid import UUID

from stoker import (
    DuplicateJob,
    InSequence,
    JobState,
    Limit,
    Lock,
    Rate,
    Result,
    Task,
    TaskContext,
    Unique,
    constant,
    exponential,
    linear,
    task,
)


@task
def bare(number: int, *, name: str = "") -> str:
    return name * number


@task(
    priority=10,
    queue_name="mail",
    backend="default",
    max_attempts=5,
    max_crashes=2,
    backoff=exponential(base=2, cap=600),
    timeout=timedelta(seconds=30),
    retry_on=(ConnectionError, TimeoutError),
    give_up_on=KeyError,
    expires=3600,
    describe="user {user_id}",
    redact=["api_key"],
)
def full(user_id: int) -> list[int]:
    return [user_id]


@task(
    unique=Unique(
        "feed:{feed_id}", on_conflict="postpone", delay=30, longest_wait=timedelta(hours=1)
    ),
    lock=Lock("smtp", on_busy="retry", retry_delay=5),
    limit=(Limit(4, "host:{host}"), Limit(100)),
    rate=Rate("100/m", burst=5, weight=lambda feed_id, host: len(host)),
    sequence="feed:{feed_id}",
)
def guarded(feed_id: int, host: str) -> None: ...


def own_key(feed_id: int, host: str) -> UUID | tuple[int, str] | None:
    return (feed_id, host) if host else None


@task()
async def later(number: int) -> float:
    return number / 2


@task
async def bare_later(number: int) -> float:
    return number / 2


@task(takes_context=True)
def with_context(context: TaskContext, number: int) -> bytes:
    assert_type(context.attempt, int)
    return b"x" * number


@task(takes_context=True, max_attempts=2)
async def later_with_context(context: TaskContext, number: int) -> bytes:
    return b"x" * number


def own_backoff(exception: BaseException, result: Any) -> timedelta | None:
    return None if isinstance(exception, KeyError) else timedelta(seconds=result.attempts)


task(backoff=own_backoff)
task(backoff=[1, 2.5, timedelta(minutes=1)])
task(backoff=linear(10))
task(backoff=constant(10, jitter=True))
task(backoff="soon")  # E: incompatible type "str"
task(timeout="30")  # E: matches argument type "str"
task(max_attempts=2.5)  # E: matches argument type "float"
task(retry_on=[OSError])  # E: matches argument type "list
task(retry_on=int)  # E: incompatible type
task(max_atempts=3)  # E: "max_atempts"
task(run_after=3)  # E: "run_after"
task(unique=Unique(), limit=Limit(4), sequence=InSequence(own_key, after_failure="halt"))
task(unique=True)  # E: matches argument type "bool"
task(lock="smtp")  # E: matches argument type "str"
task(limit=[Limit(4)])  # E: matches argument type "list
task(limit=(Limit(4), Rate("4/s")))  # E: incompatible type "tuple
task(rate="100/m")  # E: matches argument type "str"
task(sequence=5)  # E: matches argument type "int"
Unique("feed", "global")  # E: Too many positional arguments
Unique(on_conflict="skip")  # E: incompatible type "Literal['skip']"
Lock(5)  # E: incompatible type "int"
Lock(lambda feed_id: [feed_id])  # E: incompatible
Limit("smtp")  # E: incompatible type "str"
Rate(100)  # E: incompatible type "int"
InSequence()  # E: Missing positional argument "key"
task(takes_context="yes")  # E: matches argument type "str"

assert_type(bare.enqueue(3), Result[str])
assert_type(bare.enqueue(3, name="x"), Result[str])
bare.enqueue("3")  # E: incompatible type "str"; expected "int"
bare.enqueue()  # E: Missing positional argument "number"
bare.enqueue(3, "x")  # E: Too many positional arguments
bare.enqueue(3, nam="x")  # E: Unexpected keyword argument "nam"
bare(3)  # E: not callable

assert_type(full.enqueue(user_id=7), Result[list[int]])
full.enqueue(user_id="7")  # E: incompatible type "str"; expected "int"

assert_type(later.enqueue(3), Result[float])
assert_type(bare_later.enqueue(3), Result[float])
later.enqueue("3")  # E: incompatible type "str"; expected "int"

assert_type(with_context.enqueue(3), Result[bytes])
assert_type(later_with_context.enqueue(3), Result[bytes])
with_context.enqueue()  # E: Missing positional argument "number"
with_context.enqueue(3, 4)  # E: Too many arguments
later_with_context.enqueue("3")  # E: incompatible type "str"; expected "int"

changed = bare.using(
    priority=3,
    queue_name="mail",
    backend="other",
    run_after=timedelta(minutes=5),
    timeout=3,
    expires=datetime(2030, 1, 1, tzinfo=UTC),
)
assert_type(changed.enqueue(3), Result[str])
assert_type(bare.using(run_after=5).enqueue(3), Result[str])
assert_type(bare.using(run_after=datetime(2030, 1, 1, tzinfo=UTC)).enqueue(3), Result[str])
changed.enqueue("3")  # E: incompatible type "str"; expected "int"
bare.using(run_after="5")  # E: incompatible type "str"
bare.using(unique=None, lock=None, limit=None, rate=None, sequence=None)
bare.using(lock=Lock(own_key), limit=(Limit(4),)).enqueue("3")  # E: incompatible type "str"
bare.using(unique="feed")  # E: incompatible type "str"
bare.using(priorty=3)  # E: Unexpected keyword argument "priorty"
bare.using(takes_context=True)  # E: Unexpected keyword argument "takes_context"

try:
    guarded.enqueue(7, host="example.com")
except DuplicateJob as duplicate:
    print(duplicate.result)

many = bare.enqueue_many([((3,), {"name": "x"}), ((4,), {})])
assert_type([result.wait() for result in many], list[str])
bare.enqueue_many([3, 4])  # E: incompatible type

result = bare.enqueue(3)
assert_type(result.wait(timeout=3), str)
assert_type(result.wait(timedelta(seconds=3)), str)
assert_type(result.return_value, str)
assert_type(result.state, JobState)
assert_type(result.cancel(), bool)
assert_type(bare.get_result(result.id), Result[str])
number: int = result.wait()  # E: expression has type "str", variable has type "int"
number = bare.call(3)  # E: expression has type "str", variable has type "int"
assert_type(bare.call(3), str)


async def use() -> None:
    enqueued = await later.aenqueue(3)
    assert_type(enqueued, Result[float])
    assert_type(await enqueued, float)
    assert_type(await enqueued.wait_async(3), float)
    assert_type(await enqueued.acancel(), bool)
    assert_type(await bare.acall(3), str)
    assert_type(await bare.aget_result("x"), Result[str])
    assert_type([one.return_value for one in await bare.aenqueue_many([((3,), {})])], list[str])
    await later.aenqueue("3")  # E: incompatible type "str"; expected "int"
    await later.aenqueue()  # E: Missing positional argument "number"
    _text: str = await enqueued  # E: expression has type "float", variable has type "str"


def takes_a_task(of_text: Task[[int], str]) -> Result[str]:
    return of_text.enqueue(3)


@task
def only_a_number(number: int) -> str:
    return str(number)


takes_a_task(only_a_number)
takes_a_task(full)  # E: incompatible type
