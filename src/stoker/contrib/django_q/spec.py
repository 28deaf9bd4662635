"""The call that a job of the shim makes, and functions that are named by their path.

A job's arguments are ``(spec, arguments)``. The spec is a dict of plain values that the monitor can
read; the arguments are ``[args, kwargs]``. With SERIALIZER "pickle" each of the two is signed
bytes, so that only the worker unpickles them.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from inspect import isroutine
from types import SimpleNamespace
from typing import Any, ClassVar, Self
from uuid import UUID

from stoker.compat import is_task
from stoker.conf import Settings
from stoker.exceptions import InvalidSchedule, StokerError, UnknownTask
from stoker.jobs.package import sealer_for
from stoker.tasks.arguments import HIDDEN, InnerCall
from stoker.tasks.registry import find_task
from stoker.tasks.task import Task

from . import conf
from .instances import as_references

Spec = dict[str, Any]
Options = dict[str, Any]

OPTIONS = (
    "hook", "group", "save", "sync", "cached", "ack_failure", "iter_count", "iter_cached", "chain",
    "broker", "cluster", "timeout", "task_name",
)  # fmt: skip
"""Keyword arguments of ``async_task`` that are not passed to the function."""
SEALED = ("args", "kwargs", "result")
"""Columns of ``Task`` with sealed values. They may contain secrets."""
LONGEST_FUNCTION = 256
LONGEST = 100


def taken_out(kwargs: dict[str, Any]) -> Options:
    """Remove the options from these keyword arguments and return them.

    As in Django Q, an option in ``q_options`` leaves a keyword argument of the same name to the
    function. Only ``task_name`` is always an option.
    """
    given = kwargs.pop("q_options", None) or {}
    names = [name for name in OPTIONS if name not in given or name == "task_name"]
    options: Options = {**given, **{name: kwargs.pop(name) for name in names if name in kwargs}}
    broker = options.pop("broker", None)
    if broker is not None and getattr(broker, "list_key", None):
        options.setdefault("cluster", broker.list_key)
    return options


def spec_of(function: Any, options: Mapping[str, Any]) -> Spec:
    """Return the spec of a call.

    Raises:
        UnknownFunction: a worker could not import the function or the hook.
        ValueError: a name is too long.
    """
    spec: Spec = {"func": path_of(function)}
    if len(spec["func"]) > LONGEST_FUNCTION:
        raise ValueError(f"The path {spec['func']!r} is longer than {LONGEST_FUNCTION} characters.")
    if options.get("hook"):
        spec["hook"] = path_of(options["hook"])
    for option, key in (("task_name", "name"), ("group", "group"), ("cluster", "cluster")):
        if options.get(option):
            spec[key] = str(options[option])
            if len(spec[key]) > LONGEST:
                raise ValueError(f"{option}={spec[key]!r} is longer than {LONGEST} characters.")
    if options.get("save") is not None:
        spec["save"] = bool(options["save"])
    cached = options.get("cached")
    seconds = conf.cached_seconds(conf.Conf.CACHED if cached is None else cached)
    if seconds is not None:
        spec["cached"] = seconds
    return spec


def packed(settings: Settings, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the arguments in the form that a job stores."""
    both: list[Any] = [list(args), dict(kwargs)]
    if settings.serializer != "pickle":
        return as_references(both)
    sealer = sealer_for(settings)
    return [sealer.seal_value(one) for one in both]


def unpacked(settings: Settings, arguments: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a job from their stored form. Raises PackageError."""
    args, kwargs = (
        sealer_for(settings).open_value(one) if isinstance(one, bytes) else one for one in arguments
    )
    return list(args), dict(kwargs)


def read_arguments(args: str | None, kwargs: str | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Parse the arguments in the columns of a schedule: "1, 'two'" and "x=1, y='two'" or a dict.

    Raises:
        InvalidSchedule: they do not contain plain values.
    """
    found: Any = _literal(args, "args", lambda text: f"({text},)") if args else ()
    if args and isinstance(found, tuple) and len(found) == 1 and str(args).strip()[:1] == "(":
        found = found[0] if isinstance(found[0], tuple) else found
    named: Any = {}
    if kwargs:
        is_dict = str(kwargs).strip().startswith("{")
        named = _literal(kwargs, "kwargs", str) if is_dict else _named(str(kwargs))
    return tuple(found), dict(named)


def _literal(text: Any, column: str, wrap: Callable[[str], str]) -> Any:
    try:
        return ast.literal_eval(wrap(str(text).strip().rstrip(",")))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise InvalidSchedule(
            f"{column}={str(text)[:80]!r} cannot be read: write plain values, as in 1, 'two', None."
        ) from None


def _named(text: str) -> dict[str, Any]:
    """Parse "x=1, y='two'"."""
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        assert isinstance(call, ast.Call)
        assert not call.args
        assert all(one.arg is not None for one in call.keywords)
        return {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
    except (ValueError, SyntaxError, AssertionError):
        raise InvalidSchedule(
            f"kwargs={text[:80]!r} cannot be read: write plain values, as in x=1, y='two'."
        ) from None


def name_of(spec: Spec, job_id: UUID | str) -> str:
    """Return the given name, or the function's name with a part of the id."""
    given = spec.get("name")
    if given:
        return str(given)
    identity = job_id.hex if isinstance(job_id, UUID) else str(job_id).replace("-", "")
    return f"{str(spec['func']).rpartition('.')[2][: LONGEST - 13]}-{identity[-12:]}"


def as_dict(spec: Spec, job_id: UUID | str, args: Sequence[Any], kwargs: Any) -> dict[str, Any]:
    """Return the task as in Django Q's signals."""
    identity = job_id.hex if isinstance(job_id, UUID) else str(job_id)
    found = {"id": identity, "name": name_of(spec, job_id), "args": tuple(args), "kwargs": kwargs}
    return {**spec, **found}


class UnknownFunction(StokerError, ValueError):
    """A worker could not import the function."""


def path_of(function: Any) -> str:
    """Return the dotted path with which a worker can import the function.

    Raises:
        UnknownFunction: the function has no path, or its path leads to another function.
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
                f"{function!r} is not a function of a module, so no worker could import it: write "
                "one with def in a module, and pass it or its dotted path."
            )
        module = module or getattr(owner, "__name__", "builtins")
    if module == "__main__":
        raise UnknownFunction(
            f"No worker can import {name}, because it is defined in the main program. Move it "
            "into a module."
        )
    if _leads_elsewhere(str(module), name, function):
        raise UnknownFunction(
            f"A worker would not find {function!r} at {module}.{name}, because another function "
            "has that path: pass the dotted path of the one to call."
        )
    return f"{module}.{name}"


def _leads_elsewhere(module: str, name: str, function: Any) -> bool:
    """Return whether another function has this path, for example because ``functools.wraps`` has
    given it to a wrapper with a name of its own."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return isroutine(found) and found != function


def function_at(path: str) -> Callable[..., Any]:
    """Return the function, class or method at that path. Of a task, return its function.

    Raises:
        UnknownTask: nothing callable is there.
    """
    found = _look_up(path)
    if is_task(found):
        found = found.func
    if not callable(found):
        raise UnknownTask(f"{path!r} is not a function but a {type(found).__name__}.")
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


@dataclass(frozen=True, kw_only=True)
class CallingTask(Task[..., Any]):
    """A task that calls a function. Its jobs are shown under the function's name."""

    needs_app: ClassVar[str] = "stoker.contrib.django_q"
    """App without which its jobs must not run, because their end could not be recorded."""
    path: str = ""
    """Path of the function; "" = the task's own."""

    @property
    def module_path(self) -> str:
        return self.path or self.own_path

    @property
    def name(self) -> str:
        return self.module_path.rpartition(".")[2]

    @property
    def own_path(self) -> str:
        return f"{self.func.__module__}.{self.func.__qualname__}"

    @property
    def via(self) -> str:
        """Path of this task. The packages of its jobs contain it: see
        ``stoker.tasks.registry.task_of``."""
        return self.own_path if self.path else ""

    def inner_call(self, args: Sequence[Any]) -> InnerCall | None:
        """Return the call of the function. None = the arguments are not complete.

        If they are pickled and cannot be opened here, all of them are hidden.
        """
        if len(args) < 2 or not isinstance(args[-1], list | tuple) or len(args[-1]) != 2:
            return None
        try:
            given, named = unpacked(conf.settings(), args[-1])
        except (StokerError, TypeError, ValueError):
            return InnerCall(None, [HIDDEN], {})
        try:
            found = _look_up(self.module_path)
        except UnknownTask:
            return InnerCall(None, given, named)
        task = found if is_task(found) else SimpleNamespace(func=found, takes_context=False)
        return InnerCall(task, given, named)

    def under(self, path: str) -> Self:
        """Return this task for the function at that path."""
        return replace(self, path=path)

    def __reduce__(self) -> Any:
        return _task_under, (self.own_path, self.path, self.backend, self.queue_name)


def _task_under(own_path: str, path: str, backend: str, queue_name: str) -> Any:
    return replace(find_task(own_path), path=path, backend=backend, queue_name=queue_name)
