"""Job ids: UUID version 7 (RFC 9562). Later ids sort later, so inserts touch the same index
pages."""

from __future__ import annotations

import os
import struct
import threading
import time
import uuid
from collections.abc import Iterable

from .forks import after_fork

STEP_BITS = 8
"""Number of last bits that may differ between the id of a job and the ids of its needs."""
RANDOM_PART = (1 << 62) - 1
STEP = 1 << 61
"""Bit of a job that is a step of a workflow."""
LINKED = 1 << 60
"""Bit of a job that has hooks or is a hook."""
UNMARKED_DIGIT = "8"
"""Hexadecimal digit at index 16 of an id without these bits. The first two bits of the digit are
the variant of the UUID."""
BELOW_MARKS = LINKED - 1
_UNKNOWN, _new, _set = uuid.SafeUUID.unknown, object.__new__, object.__setattr__
_lock = threading.Lock()
_last_tick = 0


def new_job_id(marks: int = 0) -> uuid.UUID:
    """Return a new id. Ids of one process are strictly increasing.

    Args:
        marks: STEP, LINKED, both or none. The bits show without a query whether anything follows
            from the job's end.
    """
    random_bits = int.from_bytes(os.urandom(8), "big") & BELOW_MARKS
    return uuid.UUID(int=_assemble(_next_ticks(1), random_bits | marks))


def new_job_numbers(count: int, marks: int = 0) -> list[int]:
    """Return ``count`` new ids as integers (``UUID(int=number)``), in ascending order.

    Args:
        count: at least 1.
        marks: as for ``new_job_id``.
    """
    random_bits = struct.unpack(f">{count}Q", os.urandom(8 * count))
    return [
        _assemble(tick, bits & BELOW_MARKS | marks)
        for tick, bits in enumerate(random_bits, _next_ticks(count))
    ]


def id_of(number: int) -> uuid.UUID:
    """Return the UUID with this integer. Several times as fast as the constructor, which checks
    it."""
    job_id = _new(uuid.UUID)
    _set(job_id, "int", number)
    _set(job_id, "is_safe", _UNKNOWN)
    return job_id


def is_marked(job_id: uuid.UUID) -> bool:
    """Return whether the job is a step of a workflow, has hooks or is a hook."""
    return bool(job_id.int & (STEP | LINKED))


def none_is_marked(job_ids: Iterable[str]) -> bool:
    """Return whether no id has the bit STEP or LINKED. The ids are given as 32 digits."""
    return {job_id[16] for job_id in job_ids} <= {UNMARKED_DIGIT}


def is_step(job_id: uuid.UUID) -> bool:
    """Return whether the job is a step of a workflow."""
    return bool(job_id.int & STEP)


def is_linked(job_id: uuid.UUID) -> bool:
    """Return whether the job has hooks or is a hook."""
    return bool(job_id.int & LINKED)


def derived_job_id(moment_seconds: float, bits: int, marks: int = 0) -> uuid.UUID:
    """Return the id that these arguments determine, so that an import never creates a job twice.

    Args:
        moment_seconds: since 1970.
        bits: at least 60 bits that identify the source.
        marks: as for ``new_job_id``.
    """
    return uuid.UUID(int=_assemble(int(moment_seconds * 1000) << 12, bits & BELOW_MARKS | marks))


def seconds_of(job_id: uuid.UUID) -> float:
    """Return when the id was made, in seconds since 1970."""
    return (job_id.int >> 80) / 1000


def first_id_at(moment_seconds: float) -> uuid.UUID:
    """Return the lowest id that can be made in the millisecond of this moment. An earlier moment
    than 1970 counts as 1970."""
    return uuid.UUID(int=max(0, int(moment_seconds * 1000)) << 80 & (1 << 128) - 1)


def following_job_id(job_id: uuid.UUID) -> uuid.UUID:
    """Return a new id that sorts right after this one and has the same flag bits, so that a new
    job can take this job's position in the queue."""
    room = (BELOW_MARKS - (job_id.int & BELOW_MARKS)) >> STEP_BITS  # the flag bits are above these
    step = 1 + int.from_bytes(os.urandom(5), "big") % max(1, min(room, 1 << 40))
    return uuid.UUID(int=job_id.int + (step << STEP_BITS))


def new_lease_id() -> int:
    """Return a new fencing token: 63 random bits, never zero."""
    return (int.from_bytes(os.urandom(8), "big") >> 1) or 1


def parse_job_id(text: str) -> uuid.UUID | None:
    """Parse an id. Return None if ``text`` is not an id."""
    try:
        return uuid.UUID(text)
    except (ValueError, AttributeError, TypeError):
        return None


def _next_ticks(count: int) -> int:
    """Reserve ``count`` consecutive ticks and return the first one.

    A tick is a millisecond since 1970 with 12 bits of fraction (RFC 9562, 6.2, method 3).
    """
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


after_fork(_renew_lock_after_fork)
