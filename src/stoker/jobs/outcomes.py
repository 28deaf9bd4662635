"""What an attempt came to: a value, decided where the attempt ran, carried out by record.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from stoker.brokers.contract import Delivery


@dataclass(frozen=True, slots=True)
class Fault:
    """An error as it is kept: by name and text, readable without the code that raised it."""

    exception_class: str
    """Dotted path of the exception's class."""
    message: str
    traceback: str
    location: str = ""
    """Where it was raised, ``module:function``: with the class, the fingerprint of the fault."""

    @property
    def in_one_line(self) -> str:
        return f"{self.exception_class}: {self.message.partition(chr(10))[0]}"


# Not frozen, since there is one for each job: that would make it several times as slow to make.
@dataclass(slots=True)
class Succeeded:
    """The task returned."""

    kind: ClassVar[str] = "succeeded"
    value: bytes


@dataclass(frozen=True, slots=True)
class Failed:
    """The job is over: a dead letter is written."""

    kind: ClassVar[str] = "failed"
    fault: Fault
    reason: str = "error"
    """One of DeadLetter.Reason: error, timeout, crash, expired, unreadable, unknown_task."""


@dataclass(frozen=True, slots=True)
class Retry:
    """This attempt failed; the job is tried again."""

    kind: ClassVar[str] = "retry"
    fault: Fault
    delay_seconds: float
    reason: str = "error"


@dataclass(frozen=True, slots=True)
class Snoozed:
    """Run again later; the attempt is given back and nothing is recorded against the job."""

    kind: ClassVar[str] = "snoozed"
    delay_seconds: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Ended on purpose."""

    kind: ClassVar[str] = "cancelled"
    reason: str


@dataclass(frozen=True, slots=True)
class Crashed:
    """The worker process died under the job; the parent saw how."""

    kind: ClassVar[str] = "crashed"
    detail: str
    exit_code: int | None = None
    signal: int | None = None
    has_begun: bool = True
    """Whether the task had been called; False if the worker died while it opened the package."""


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The worker process was killed because the job ran past its hard time-out."""

    kind: ClassVar[str] = "timed_out"
    detail: str
    signal: int | None = None


Outcome = Succeeded | Failed | Retry | Snoozed | Cancelled | Crashed | TimedOut

KINDS: dict[str, type[Outcome]] = {
    kind.kind: kind for kind in (Succeeded, Failed, Retry, Snoozed, Cancelled, Crashed, TimedOut)
}


# Not frozen, since there is one for each job: that would make it several times as slow to make.
@dataclass(slots=True)
class Attempted:
    """A finished attempt: its delivery, worker, times and outcome."""

    delivery: Delivery
    outcome: Outcome
    worker_id: str
    started_at: float | None
    """Seconds since 1970 by the worker's clock: shown, never decided on. None = not known."""
    finished_at: float
    is_recorded: bool = False
    """Whether the outcome was recorded in the transaction of the task itself."""
    task: str = ""
    """Task path in the package; "" = the package was not opened."""
    enqueued_at: float | None = None
    """Seconds since 1970 by the enqueuing process's clock. None = unknown."""


Packed = tuple[Any, ...]
"""An outcome as it travels between processes: its kind, then its values."""


def pack_outcome(outcome: Outcome) -> Packed:
    """Return the outcome as a plain tuple."""
    if isinstance(outcome, Succeeded):  # nearly always
        return ("succeeded", outcome.value)
    match outcome:
        case Failed(fault, reason):
            return ("failed", _pack_fault(fault), reason)
        case Retry(fault, delay_seconds, reason):
            return ("retry", _pack_fault(fault), delay_seconds, reason)
        case Snoozed(delay_seconds, reason):
            return ("snoozed", delay_seconds, reason)
        case Crashed(detail, exit_code, signal, has_begun):
            return ("crashed", detail, exit_code, signal, has_begun)
        case TimedOut(detail, signal):
            return ("timed_out", detail, signal)
    return ("cancelled", outcome.reason)


def open_outcome(packed: Packed) -> Outcome:
    """The outcome that was packed."""
    kind, *values = packed
    if kind in ("failed", "retry"):
        values[0] = Fault(*values[0])
    outcome: Outcome = KINDS[kind](*values)
    return outcome


def _pack_fault(fault: Fault) -> tuple[str, str, str, str]:
    return (fault.exception_class, fault.message, fault.traceback, fault.location)
