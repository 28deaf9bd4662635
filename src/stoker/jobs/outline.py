"""Read the beginning of a package without opening it: for a pusher, which has no time to."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from stoker.exceptions import PackageError
from stoker.values import codec

from .package import HEADER_BYTES, JOB, Sealer

TASK_AT = HEADER_BYTES + len('["') + 32 + len('","')
"""Position of the task's name in a package that is neither pickled nor compressed."""


class Outline(NamedTuple):
    """The head of a package, as far as a pusher needs it."""

    name: bytes
    """The task, as ``name_in_packages`` writes it. b"": the package cannot be read."""
    max_attempts: int
    """0: the package cannot be read."""
    max_crashes: int
    call: bytes = b""
    """The bytes from TASK_AT on that name task and queue; b"" if the package has none."""


def outline(sealer: Sealer, data: bytes) -> Outline:
    """Return the outline of a package. It is good for estimates only, because the signature of most
    packages is not verified."""
    if data.startswith(JOB.plain):  # nearly always
        queue_at = data.find(b'"', TASK_AT) + len('","')
        ends_at = data.find(b'"', queue_at)
        options_at = data.find(b",[", ends_at) + len(",[")  # only numbers stand between
        limits = _limits(data[options_at : options_at + 8])
        if limits is not None and data[ends_at - 1 : ends_at] != b"\\":
            call = data[TASK_AT : ends_at + len('",')]
            return Outline(call[: queue_at - TASK_AT - len('","')], *limits, call)
    try:
        package = sealer.open_without_arguments(data)
    except PackageError:
        return Outline(b"", 0, 0)
    options = package.options
    return Outline(name_in_packages(package.task), options.max_attempts, options.max_crashes)


def name_in_packages(task: str) -> bytes:
    """Return the name of a task as it is written in packages."""
    return codec.write(task)[1:-1]


@lru_cache(maxsize=1024)
def _limits(options: bytes) -> tuple[int, int] | None:
    """Return the first two numbers of options as they are written in packages, or None."""
    first, _, rest = options.partition(b",")
    second, comma, _ = rest.partition(b",")
    if comma and first.isdigit() and second.isdigit():
        return int(first), int(second)
    return None
