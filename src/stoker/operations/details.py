"""Details and arguments of jobs and other objects. All interfaces show them with the same labels in
the same order."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models.functions import Length

from stoker.conf import Settings
from stoker.exceptions import PackageError
from stoker.jobs.package import sealer_for
from stoker.models import Job
from stoker.tasks.arguments import ShownCall, shown_call

from .wording import exactly, first_line, since, value_text

REVEAL = "stoker.reveal_job"
"""The permission to see hidden arguments."""
LARGEST_IN_LISTS_BYTES = 16_384
"""Lists omit the arguments of larger packages."""


class Fact(NamedTuple):
    """One detail of an object: label and value."""

    label: str
    value: Any
    """A text, a number or a datetime."""
    page: str = ""
    """The dashboard page that the value is linked to, such as ``job``; "" = no link."""
    hint: str = ""
    """Explanation of the label."""

    @property
    def text(self) -> str:
        """Return the value as plain text."""
        if isinstance(self.value, datetime):
            return f"{exactly(self.value)}, {since(self.value)}"
        return f"{self.value:,}" if isinstance(self.value, int) else str(self.value)


def given(*facts: Fact) -> list[Fact]:
    """Return the facts that have a value."""
    return [fact for fact in facts if fact.value not in (None, "")]


def lines_of(facts: Sequence[Fact]) -> list[str]:
    """Return the facts as lines of text."""
    return [f"{fact.label.lower():<18}{first_line(fact.text, 300)}" for fact in facts]


def call_fact(call: ShownCall | None) -> Fact:
    """Return the arguments of a call as one fact; None = they cannot be read."""
    if call is None:
        return Fact("Arguments", "the package cannot be opened")
    return Fact("Arguments", ", ".join(f"{n}={value!r}" for n, value in call.pairs) or "none")


def call_of(call: ShownCall | None) -> dict[str, Any]:
    """Return each argument as text, for web pages; None = the call cannot be read."""
    pairs = [] if call is None else [(name, value_text(value)) for name, value in call.pairs]
    return {"is_readable": call is not None, "pairs": pairs}


def call_hidden() -> dict[str, Any]:
    """Return the content for users without the permission to see arguments."""
    return {"is_readable": True, "is_hidden": True, "pairs": []}


def opened_call(settings: Settings, package: bytes, *, reveal: bool = False) -> ShownCall | None:
    """Return the arguments in a package; None = it cannot be opened.

    Args:
        reveal: Whether to show hidden arguments, too.
    """
    try:
        return shown_call(sealer_for(settings).open(package), settings.redact, reveal=reveal)
    except PackageError:
        return None


def calls_of_jobs(
    settings: Settings, job_ids: Sequence[UUID], *, reveal: bool = False
) -> dict[UUID, ShownCall | None]:
    """Return job id -> arguments, read with one query. Jobs with large packages are left out."""
    jobs: Any = Job.objects.using(settings.database).filter(pk__in=job_ids)
    small = jobs.annotate(size=Length("package")).filter(size__lte=LARGEST_IN_LISTS_BYTES)
    return {
        job_id: opened_call(settings, bytes(package), reveal=reveal)
        for job_id, package in small.values_list("pk", "package")
    }
