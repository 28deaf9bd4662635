"""Job ids: UUID version 7 (RFC 9562), so that ids made later sort later and an index stays warm."""

from __future__ import annotations

import os
import struct
import threading
import time
import uuid
from collections.abc import Iterable

STEP_BITS = 8
"""Ids that close belong to one job: its needs have those that follow its own."""
RANDOM_PART = (1 << 62) - 1
STEP = 1 << 61
"""Marks the id of a job that is a step of a workflow."""
LINKED = 1 << 60
"""Marks the id of a job that has hooks, or is one."""
MARKS_IN_BYTE = (STEP | LINKED) >> 56
"""Both of them, in the first byte of its second half."""
UNMARKED_DIGIT = "8"
"""The first of the second half of an id that has neither mark: they come after its variant."""
BELOW_MARKS = LINKED - 1
_UNKNOWN, _new, _set = uuid.SafeUUID.unknown, object.__new__, object.__setattr__
_lock = threading.Lock()
_last_tick = 0


def new_job_id(marks: int = 0) -> uuid.UUID:
    """A fresh id. Ids made by one process are strictly increasing.

    Args:
        marks: STEP, LINKED, both or none. What is in the id is known wherever the job ends, and
            costs nothing: jobs without marks are never looked up anywhere else.
    """
    random_bits = int.from_bytes(os.urandom(8), "big") & BELOW_MARKS
    return uuid.UUID(int=_assemble(_next_ticks(1), random_bits | marks))


def new_job_numbers(count: int, marks: int = 0) -> list[int]:
    """The numbers of so many fresh ids (``UUID(int=number)``), in order: for many jobs at once.

    Args:
        count: at least 1.
        marks: as ``new_job_id`` takes them.
    """
    random_bits = struct.unpack(f">{count}Q", os.urandom(8 * count))
    return [
        _assemble(tick, bits & BELOW_MARKS | marks)
        for tick, bits in enumerate(random_bits, _next_ticks(count))
    ]


def id_of(number: int) -> uuid.UUID:
    """The id that has this number, made without what the constructor looks at first: that takes
    several times as long, and there are some to be made for each job."""
    job_id = _new(uuid.UUID)
    _set(job_id, "int", number)
    _set(job_id, "is_safe", _UNKNOWN)
    return job_id


def is_marked(job_id: uuid.UUID) -> bool:
    """Whether anything may follow from its end."""
    return bool(job_id.int & (STEP | LINKED))


def is_unmarked(job_id: bytes) -> bool:
    """Whether nothing follows from its end; by its 16 bytes."""
    return not job_id[8] & MARKS_IN_BYTE


def none_is_marked(job_ids: Iterable[str]) -> bool:
    """Whether nothing follows from the end of any of these; by their 32 digits."""
    return {job_id[16] for job_id in job_ids} <= {UNMARKED_DIGIT}


def is_step(job_id: uuid.UUID) -> bool:
    """Whether the job is a step of a workflow."""
    return bool(job_id.int & STEP)


def is_linked(job_id: uuid.UUID) -> bool:
    """Whether the job has hooks, or is one."""
    return bool(job_id.int & LINKED)


def derived_job_id(moment_seconds: float, bits: int, marks: int = 0) -> uuid.UUID:
    """The id that is the same for the same arguments, as though made at that moment: for what is
    brought in from elsewhere, and must not come twice.

    Args:
        moment_seconds: since 1970.
        bits: 60 or more that nothing else has.
        marks: as ``new_job_id`` takes them.
    """
    return uuid.UUID(int=_assemble(int(moment_seconds * 1000) << 12, bits & BELOW_MARKS | marks))


def seconds_of(job_id: uuid.UUID) -> float:
    """The moment at which it was made, or as though; seconds since 1970."""
    return (job_id.int >> 80) / 1000


def following_job_id(job_id: uuid.UUID) -> uuid.UUID:
    """A fresh id that sorts right after this one, with its marks: for a job that takes its place in
    line."""
    room = (BELOW_MARKS - (job_id.int & BELOW_MARKS)) >> STEP_BITS  # the bits before say the kind
    step = 1 + int.from_bytes(os.urandom(5), "big") % max(1, min(room, 1 << 40))
    return uuid.UUID(int=job_id.int + (step << STEP_BITS))


def new_lease_id() -> int:
    """A fresh fencing token: 63 random bits, never zero."""
    return (int.from_bytes(os.urandom(8), "big") >> 1) or 1


def parse_job_id(text: str) -> uuid.UUID | None:
    """The id that ``text`` spells, or None when it spells none."""
    try:
        return uuid.UUID(text)
    except (ValueError, AttributeError, TypeError):
        return None


def _next_ticks(count: int) -> int:
    """Milliseconds since 1970 and 12 bits of fraction (RFC 9562, 6.2, method 3), increasing: the
    first of so many that follow one another. A tick is shorter than what it takes to use one."""
    global _last_tick
    now_ns = time.time_ns()
    tick = (now_ns // 1_000_000 << 12) | ((now_ns % 1_000_000) * 4096 // 1_000_000)
    with _lock:
        first = max(tick, _last_tick + 1)
        _last_tick = first + count - 1
        return first


def _assemble(tick: int, random_bits: int) -> int:
    milliseconds, fraction = tick >> 12, tick & 0xFFF
    return (
        (milliseconds & 0xFFFF_FFFF_FFFF) << 80
        | 0x7 << 76
        | fraction << 64
        | 0b10 << 62
        | (random_bits & RANDOM_PART)
    )


def _renew_lock_after_fork() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock_after_fork)
