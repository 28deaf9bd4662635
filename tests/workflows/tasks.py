"""Tasks for the tests of workflows. Each appends what it did to a list."""

from typing import Any

from stoker import Cancel, current_workflow, task

DONE: list[Any] = []
"""What the tasks have done so far, in order."""
FAILING: set[Any] = set()
"""Names of steps that fail."""


@task(max_attempts=1)
def note(name: str) -> str:
    """Append the name to DONE."""
    DONE.append(name)
    if name in FAILING:
        raise ValueError(name)
    return name


@task(max_attempts=1)
def add(first: int, second: int) -> int:
    DONE.append((first, second))
    return first + second


@task(max_attempts=1)
def total(numbers: list[int]) -> int:
    return sum(numbers)


@task
def double(number: int) -> int:
    return 2 * number


@task
async def double_later(number: int) -> int:
    return 2 * number


@task(max_attempts=1)
def tell(given: Any, name: str = "") -> Any:
    """Append the argument to DONE."""
    DONE.append((name, given) if name else given)
    return given


@task(max_attempts=1)
def tell_result(result: Any, name: str) -> None:
    """Append the state and value of a job to DONE."""
    value = result.return_value if result.status == "SUCCESSFUL" else None
    DONE.append((name, result.state.value, value))


@task(max_attempts=1)
def give_up(name: str) -> None:
    raise Cancel(name)


@task
def fan_out(count: int) -> int:
    """Add that many parallel steps and a step that sums them."""
    from stoker import group

    current_workflow().add(group(double.si(number) for number in range(count)), total.s())
    return count


@task(max_attempts=2, backoff=0)
def add_and_fail_once(name: str) -> str:
    """Add a step in each attempt; the first fails."""
    DONE.append(name)
    current_workflow().add(tell.s("added"))
    if DONE.count(name) == 1:
        raise ValueError(name)
    return name


@task(max_attempts=1)
def say(*given: Any) -> str:
    """Append its name, which is the last argument, and the argument before it."""
    *received, name = given
    DONE.append((name, received[0] if received else "nothing"))
    if name in FAILING:
        raise ValueError(name)
    return str(name)


@task(max_attempts=1)
def add_with_undo(name: str) -> str:
    """Add a step with an undo, and a step after it."""
    current_workflow().add(note.si("added").undo(note.si("undo added")), note.si("bad"))
    return name


@task(max_attempts=1)
def tell_failure(result: Any) -> None:
    """Append the id and the errors of a job to DONE."""
    DONE.append((result.id, [error.exception_class_path for error in result.errors]))
