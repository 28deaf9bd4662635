"""How a job ended, as far as others follow from it."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from stoker.models import Job


@dataclass(frozen=True, slots=True)
class Ended:
    """One job that is over."""

    job_id: UUID
    status: str
    """A value of ``Job.Status``."""
    attempt: int
    value: bytes | None = None
    """What it returned, sealed."""
    exception_class: str = ""
    message: str = ""
    """Of the error, or why it was cancelled."""

    @property
    def has_succeeded(self) -> bool:
        return self.status == Job.Status.SUCCESSFUL
