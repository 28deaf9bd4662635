"""What every look at the store has in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db import models

from stoker.brokers.base import Broker
from stoker.conf import Settings
from stoker.long_work import come_so_far

AT_ONCE = 500
"""Rows of one page: no statement looks at more."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One thing that may be wrong."""

    name: str
    sentence: str
    remedy: str = ""
    """What a repair does about it; "" = nothing would be safe."""
    is_fault: bool = True
    """Whether a promise is broken. False: it is good to know, or upkeep will see to it."""


@dataclass(slots=True)
class Scene:
    """The store that is looked at.

    Args:
        most: rows of one table, the rest is left out.
    """

    settings: Settings
    broker: Broker
    most: int
    looked_at: int = 0
    cut_short: set[str] = field(default_factory=set)
    """Tables of which rows were left out."""

    @property
    def alias(self) -> str:
        return self.settings.database

    def pages(self, model: type[models.Model], *names: str) -> Iterator[Sequence[tuple[Any, ...]]]:
        """A table along its primary key: that, and these fields."""
        rows = model._default_manager.using(self.alias).order_by("pk").values_list("pk", *names)
        after: Any = None
        seen = 0
        while page := list((rows if after is None else rows.filter(pk__gt=after))[:AT_ONCE]):
            yield page
            seen += len(page)
            self.looked_at += len(page)
            come_so_far(self.looked_at)
            after = page[-1][0]
            if len(page) < AT_ONCE:
                return
            if seen >= self.most:
                self.cut_short.add(model._meta.db_table)
                return


class Look(ABC):
    """A look at one part of the store."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.alias = scene.alias

    @abstractmethod
    def find(self) -> Iterator[tuple[Kind, Sequence[Any]]]:
        """What is wrong, page by page: of what kind, and the ids of the rows."""

    def mend(self, kind: Kind, ids: Sequence[Any]) -> int:
        """Repair these, as far as they are still as they were seen. Returns how many."""
        raise NotImplementedError  # each look has its own
