"""The examination: every look, one after the other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from django.db import DatabaseError

from stoker.brokers import broker_for
from stoker.conf import Settings
from stoker.exceptions import StokerError
from stoker.progress import explained

from .clusters import Clusters
from .guards import BlockedLines, Needs
from .jobs import Jobs, Lines
from .letters import Leftovers, Letters
from .look import Kind, Look, Scene
from .schema import Indexes, Migrations, Packages
from .steps import Steps

MOST_ROWS = 1_000_000
SHOWN_IDS = 20
LOOKS: tuple[type[Look], ...] = (
    Indexes, Lines, Jobs, Clusters, Needs, BlockedLines, Letters, Steps, Leftovers,
    Packages,
)  # fmt: skip
OF_ANY_BROKER: tuple[type[Look], ...] = (Indexes, Clusters, Letters)
"""A broker outside the database has its jobs elsewhere."""


@dataclass(slots=True)
class Finding:
    """One kind of thing that is wrong."""

    name: str
    sentence: str
    is_fault: bool
    """False: it is good to know, or upkeep will see to it; no promise is broken."""
    remedy: str
    """What a repair does about it; "" = nothing would be safe."""
    count: int = 0
    ids: list[str] = field(default_factory=list)
    """Of the first 20."""
    mended: int = 0
    error: str = ""
    """Why a repair failed."""

    @property
    def is_mended(self) -> bool:
        return self.mended >= self.count


@dataclass(slots=True)
class Report:
    """What an examination came to."""

    findings: list[Finding]
    looked_at: int
    """Rows."""
    cut_short: list[str]
    """Tables of which rows were left out."""
    seconds: float

    @property
    def is_healthy(self) -> bool:
        """Whether no promise is broken, or not any more."""
        return all(one.is_mended or not one.is_fault for one in self.findings)


def examine(settings: Settings, *, repair: bool = False, most_rows: int = MOST_ROWS) -> Report:
    """Look at the whole store of a backend, page by page.

    Args:
        settings: the backend's.
        repair: mend what is safe to mend.
        most_rows: of one table; the rest is left out, which the report tells.

    Raises:
        BrokerUnavailable, NotMigrated: the store can't be read.
    """
    began = time.monotonic()
    broker = broker_for(settings)
    scene = Scene(settings, broker, most_rows)
    findings: dict[str, Finding] = {}
    looks = LOOKS if broker.capabilities.transactional else OF_ANY_BROKER
    with explained(settings.database):
        _look(Migrations(scene), findings, repair=False)
        for look in () if findings else looks:
            _look(look(scene), findings, repair=repair)
    seconds = round(time.monotonic() - began, 3)
    return Report([*findings.values()], scene.looked_at, sorted(scene.cut_short), seconds)


def _look(look: Look, findings: dict[str, Finding], *, repair: bool) -> None:
    for kind, ids in _found(look):
        finding = findings.setdefault(
            kind.name, Finding(kind.name, kind.sentence, kind.is_fault, kind.remedy)
        )
        finding.count += len(ids)
        finding.ids += [str(one) for one in ids[: SHOWN_IDS - len(finding.ids)]]
        if repair and kind.remedy:
            try:
                finding.mended += look.mend(kind, ids)
            except (StokerError, DatabaseError) as error:
                finding.error = str(error)


def _found(look: Look) -> Iterator[tuple[Kind, Any]]:
    return ((kind, ids) for kind, ids in look.find() if ids)
