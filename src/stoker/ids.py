"""Job ids: UUID version 7 (RFC 9562), so that ids made later sort later and an index stays warm."""

from __future__ import annotations

import os
import threading
import time
import uuid

STEP_BITS = 8
"""Ids that close belong to one job: its needs have those that follow its own."""
RANDOM_PART = (1 << 62) - 1
STEP = 1 << 61
"""Marks the id of a job that is a step of a workflow."""
LINKED = 1 << 60
"""Marks the id of a job that has hooks, or is one."""
BELOW_MARKS = LINKED - 1
_lock = threading.Lock()
_last_tick = 0


def new_job_id(marks: int = 0) -> uuid.UUID:
    """A fresh id. Ids made by one process are strictly increasing.

    Args:
        marks: STEP, LINKED, both or none. What is in the id is known wherever the job ends, and
            costs nothing: jobs without marks are never looked up anywhere else.
    """
    random_bits = int.from_bytes(os.urandom(8), "big") & BELOW_MARKS
    return uuid.UUID(int=_assemble(_next_tick(), random_bits | marks))


def is_marked(job_id: uuid.UUID) -> bool:
    """Whether anything may follow from its end."""
    return bool(job_id.int & (STEP | LINKED))


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


def _next_tick() -> int:
    """Milliseconds since 1970 and 12 bits of fraction (RFC 9562, 6.2, method 3), increasing."""
    global _last_tick
    now_ns = time.time_ns()
    tick = (now_ns // 1_000_000 << 12) | ((now_ns % 1_000_000) * 4096 // 1_000_000)
    with _lock:
        _last_tick = max(tick, _last_tick + 1)
        return _last_tick


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
