"""Functions that the tests call. Some note their calls in `done`."""

from functools import wraps
from time import sleep
from typing import Any

from stoker.contrib.django_q.tasks import async_iter, async_task, result

from tests.app.models import Account

done: list[Any] = []


def add(one: float, two: float = 0) -> float:
    return one + two


def note(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
    done.append((args, kwargs))
    return args


def total_of(account: Any) -> list[Any]:
    return [type(account).__name__, account.total]


def totals_of(accounts: list[Any], last: Any) -> list[int]:
    first, others = accounts
    return [first.total, others["one"][0].total, last.total]


def first_of(*found: Any) -> Any:
    return found[0]


def sign_in(name: str, password: str, token: str = "") -> str:
    return name


def fail(text: str = "out of order") -> None:
    raise ValueError(text)


def fail_on(number: int, bad: int) -> int:
    if number == bad:
        raise ValueError(f"{number} is bad")
    return number


def create_account(pk: int) -> None:
    Account.objects.create(pk=pk)


def doubled(function: Any) -> Any:
    @wraps(function)
    def inside(*args: Any) -> Any:
        return 2 * function(*args)

    return inside


def _single(number: int) -> int:
    return number


double = doubled(_single)


@doubled
def four_times(number: int) -> int:
    return 2 * number


def hook(task: Any) -> None:
    done.append((task.id, task.name, task.success, task.result))


def hook_whole(task: Any) -> None:
    done.append(task)


def repeat(text: str, count: int) -> str:
    return text * count


def try_in_sync(path: str) -> str:
    try:
        return async_task(path, sync=True)
    except ValueError as error:
        return str(error)


def call_others_in_sync() -> list[int]:
    path = f"{__name__}.add"
    async_task(path, 1, 1, sync=True, hook=f"{__name__}.hook", task_name="inner")
    found: list[int] = result(async_iter(path, [(1, 2), (3, 4)], sync=True))
    return found


class Till:
    """A class with methods that can be called without an object."""

    @staticmethod
    def count(*coins: int) -> int:
        return sum(coins)

    @classmethod
    def name_of(cls) -> str:
        return cls.__name__


def step(number: int, wait_seconds: float = 0.0) -> int:
    """Take some time, so that the worker can be killed meanwhile."""
    sleep(wait_seconds)
    return number
