"""What a type checker has to say about the use of tasks. It is checked, and never run.

A line with a comment that begins with E and a colon must bring an error with the text that follows
there; every other line must not.
"""

from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from stoker import (
    JobState,
    Result,
    Task,
    TaskContext,
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
)
def full(user_id: int) -> list[int]:
    return [user_id]


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
bare.using(priorty=3)  # E: Unexpected keyword argument "priorty"
bare.using(takes_context=True)  # E: Unexpected keyword argument "takes_context"

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
