"""Unique jobs: who gets a key is decided when a job is enqueued, in its transaction.

What the job that has a key does, and what becomes of a newcomer:

::

                                        keep    replace, postpone    after    raise
    waits, for its first try or a retry kept    changed              kept     refused
    runs                                kept    follows              follows  refused
    is over, but within is not          kept    -                    kept     refused
    is over                             takes the key

With ``until="started"`` a job is over once it was started. One that waits is held until this
transaction has ended: it cannot start before what its newcomer's caller writes is committed.

Nothing is decided on what was seen before a wait for a lock: look, hold, look again. And a key is
taken by statements that change nothing if somebody was quicker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from uuid import UUID

from stoker.exceptions import BrokerUnavailable
from stoker.guards.keys import UniqueClaim
from stoker.models import UniqueKey
from stoker.models.unique_key import (
    JOB_HAS_ENDED,
    JOB_HAS_STARTED,
    NO_MATTER_WHAT,
    Condition,
    KeySeen,
    Taking,
)
from stoker.models.waiting_jobs import Held, hold

CHANGES = ("replace", "postpone")
"""What changes the job that waits."""
FOLLOWS = ("replace", "postpone", "after")
"""What lets a job follow the one that runs."""
LONGEST_IDENTITY = 255
ROUNDS = 20
"""Looks at a key before giving up. Two or three are usual; each further one means that its job went
on in that very moment."""


class KeyInMotion(BrokerUnavailable):
    """In a new transaction it may be found at rest."""


class Fate(Enum):
    ENQUEUED = "enqueued"
    """The key is the newcomer's."""
    KEPT = "kept"
    """The job that is there stays as it is."""
    CHANGED = "changed"
    """The job that is there waits, and shall be what the newcomer says."""


@dataclass(frozen=True, slots=True)
class Decision:
    """About one key."""

    fate: Fate
    job_id: UUID
    """The newcomer's, or that of the job which is there."""
    taken_us: int
    """When the job of this key was enqueued first, on the database's clock."""
    held: Held | None = None
    """Where the job that is there waits, if it does."""


class Keys:
    """Keys that are asked for together.

    Args:
        alias: of the database, in a transaction.
        wanted: key -> what is asked of it, and the id that the new job would have.
    """

    def __init__(self, alias: str, wanted: Mapping[UUID, tuple[UniqueClaim, UUID]]) -> None:
        self.now_us = 0
        """The time of the last look, on the database's clock."""
        self._alias = alias
        self._keys = UniqueKey.objects.using(alias)
        self._open = dict(wanted)
        self._held: dict[UUID, Held] = {}
        self._decided: dict[UUID, Decision] = {}

    def decide(self) -> dict[UUID, Decision]:
        """Take the keys that are free, and hold the jobs that wait under the others.

        Raises:
            KeyInMotion: a key was never what it had seemed to be.
        """
        if not self._open:
            return {}
        for _ in range(ROUNDS):
            self._go_round()
            if not self._open:
                return self._decided
        claim, _ = next(iter(self._open.values()))
        raise KeyInMotion(
            f"The key {claim.name!r} changes hands faster than it can be looked at, or the open "
            "transaction does not see what others have committed since it began: try again."
        )

    def _go_round(self) -> None:
        self.now_us, seen = self._keys.look(self._open)
        new: list[Taking] = []
        over: dict[Condition, list[Taking]] = {}
        waiting: list[KeySeen] = []
        for key_id, (claim, job_id) in list(self._open.items()):
            key = seen.get(key_id)
            if key is None:
                new.append(self._taking(claim, job_id))
            elif key.job_id == job_id:
                self._settle(key_id, Decision(Fate.ENQUEUED, job_id, key.taken_us))
            elif _waits(key, claim):
                waiting.append(key)
            elif condition := self._may_be_taken(key, claim):
                taking = self._taking(claim, job_id)._replace(old_job_id=key.job_id)
                if condition is not NO_MATTER_WHAT:
                    taking = taking._replace(over_us=self.now_us)
                over.setdefault(condition, []).append(taking)
            else:
                self._settle(key_id, Decision(Fate.KEPT, key.job_id, key.taken_us))
        self._hold(waiting)
        if new and self._keys.insert(new):
            self._are_ours(new)
        for condition, takings in over.items():
            if self._keys.take_over(takings, condition):
                self._are_ours(takings)

    def _may_be_taken(self, key: KeySeen, claim: UniqueClaim) -> Condition | None:
        """On what condition the key is taken from its job; None = it is not."""
        if claim.until == "finished" and key.is_alive:
            return NO_MATTER_WHAT if claim.on_conflict in FOLLOWS else None
        if key.until_us > self.now_us:
            return None
        return JOB_HAS_ENDED if claim.until == "finished" else JOB_HAS_STARTED

    def _taking(self, claim: UniqueClaim, job_id: UUID) -> Taking:
        until_us = self.now_us + claim.within_us if claim.within_us else 0
        return Taking(claim.key_id, claim.name, job_id, self.now_us, until_us)

    def _hold(self, waiting: list[KeySeen]) -> None:
        """Those that are held by now are decided; the others are looked at once more."""
        to_hold: dict[bool, dict[UUID, str]] = {}
        for key in waiting:
            claim, _ = self._open[key.key_id]
            changes = claim.on_conflict in CHANGES
            held = self._held.get(key.job_id)
            if held is not None and held.table == key.waits:
                fate = Fate.CHANGED if changes else Fate.KEPT
                self._settle(key.key_id, Decision(fate, key.job_id, key.taken_us, held))
            elif key.waits is not None:
                to_hold.setdefault(changes, {})[key.job_id] = key.waits
        for alone, waits in to_hold.items():
            self._held |= hold(self._alias, waits, alone=alone)

    def _are_ours(self, takings: list[Taking]) -> None:
        for one in takings:
            self._settle(one.key_id, Decision(Fate.ENQUEUED, one.job_id, one.taken_us))

    def _settle(self, key_id: UUID, decision: Decision) -> None:
        del self._open[key_id]
        self._decided[key_id] = decision


def identity_of(claim: UniqueClaim) -> str:
    """The logical job, under which its dead letter is kept: the name to be read, the key because a
    collation may make two names one."""
    key = claim.key_id.hex
    return f"{claim.name[: LONGEST_IDENTITY - len(key) - 1]} {key}"


def _waits(key: KeySeen, claim: UniqueClaim) -> bool:
    """Whether its job waits, and has the key for that."""
    if claim.until == "finished":
        return key.is_alive and key.waits is not None
    return key.waits_for_its_first_attempt
