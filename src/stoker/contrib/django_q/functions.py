"""From functions to dotted paths, and back."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from stoker.compat import is_task
from stoker.exceptions import StokerError, UnknownTask


class UnknownFunction(StokerError, ValueError):
    """No worker would find this function."""


def path_of(function: Any) -> str:
    """The dotted path by which a worker finds this function.

    Raises:
        UnknownFunction: it has none, or another function is found there.
    """
    if isinstance(function, str):
        return function
    if is_task(function):
        return str(function.module_path)
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", None)
    if not module or not name or "<" in name or getattr(function, "__self__", None) is not None:
        owner = getattr(function, "__self__", None)
        if not (isinstance(owner, type) or type(owner).__name__ == "module") or not name:
            raise UnknownFunction(
                f"{function!r} is no function of a module, so no worker could import it: write one "
                "with def in a module, and pass it or its dotted path."
            )
        module = module or getattr(owner, "__name__", "builtins")
    if module == "__main__":
        raise UnknownFunction(
            f"No worker finds {name}: it is of the program that runs now. Move it into a module."
        )
    return f"{module}.{name}"


def function_at(path: str) -> Callable[..., Any]:
    """The function, class or method of that path. A task counts as its function.

    Raises:
        UnknownTask: there is none.
    """
    found = _look_up(path)
    if is_task(found):
        found = found.func
    if not callable(found):
        raise UnknownTask(f"{path!r} is no function but a {type(found).__name__}.")
    return found  # type: ignore[no-any-return] # asked


def _look_up(path: str) -> Any:
    parts = path.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise UnknownTask(f"{path!r} is not the path of a function, as in 'math.copysign'.")
    for end in range(len(parts) - 1, 0, -1):
        name = ".".join(parts[:end])
        try:
            found: Any = import_module(name)
        except ModuleNotFoundError as error:
            if error.name is not None and f"{name}.".startswith(f"{error.name}.") and end > 1:
                continue
            raise UnknownTask(
                f"There is no function {path!r} here: {type(error).__name__}: {error}."
            ) from error
        except Exception as error:
            raise UnknownTask(
                f"There is no function {path!r} here: importing {name} failed with "
                f"{type(error).__name__}: {error}."
            ) from error
        for part in parts[end:]:
            if not hasattr(found, part):
                raise UnknownTask(f"There is no function {path!r} here: {name} has no {part!r}.")
            found = getattr(found, part)
        return found
    raise AssertionError("the loop returns or raises")
