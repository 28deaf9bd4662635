"""What a job of the shim is: which function with what, and what the shim has to know of it.

A job carries ``(spec, arguments)``. The spec is a dict of plain values, so that the monitor can
read it; the arguments are ``[args, kwargs]``, and with SERIALIZER "pickle" the bytes of each of the
two, signed, so that nobody but the worker unpickles them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from stoker.conf import Settings
from stoker.jobs.package import sealer_for

from . import conf
from .functions import function_at, path_of

Spec = dict[str, Any]

OPTIONS = (
    "hook", "group", "save", "sync", "cached", "ack_failure", "iter_count", "iter_cached", "chain",
    "broker", "cluster", "timeout", "task_name",
)  # fmt: skip
"""Keywords of ``async_task`` that are not the function's."""
LONGEST_FUNCTION = 256
LONGEST = 100


def spec_of(function: Any, options: Mapping[str, Any]) -> Spec:
    """What is to be known of a call.

    Raises:
        UnknownFunction: no worker would find the function, or the hook.
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
    """The arguments as a job carries them."""
    both: list[Any] = [list(args), dict(kwargs)]
    if settings.serializer != "pickle":
        return both
    sealer = sealer_for(settings)
    return [sealer.seal_value(one) for one in both]


def unpacked(settings: Settings, arguments: Any) -> tuple[list[Any], dict[str, Any]]:
    """The arguments again. Raises PackageError."""
    args, kwargs = (
        sealer_for(settings).open_value(one) if isinstance(one, bytes) else one for one in arguments
    )
    return list(args), dict(kwargs)


def name_of(spec: Spec, job_id: UUID | str) -> str:
    """Its name: the one it was given, or the function's with a part of the id."""
    given = spec.get("name")
    if given:
        return str(given)
    identity = job_id.hex if isinstance(job_id, UUID) else str(job_id).replace("-", "")
    return f"{str(spec['func']).rpartition('.')[2][: LONGEST - 13]}-{identity[-12:]}"


def as_dict(spec: Spec, job_id: UUID | str, args: Sequence[Any], kwargs: Any) -> dict[str, Any]:
    """The task as Django Q's signals have it."""
    identity = job_id.hex if isinstance(job_id, UUID) else str(job_id)
    found = {"id": identity, "name": name_of(spec, job_id), "args": tuple(args), "kwargs": kwargs}
    return {**spec, **found}


def function_of(spec: Spec) -> Callable[..., Any]:
    """The function that is called. Raises UnknownTask."""
    return function_at(str(spec["func"]))
