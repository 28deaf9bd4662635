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
from dataclasses import dataclass, field
from enum import Enum
from uuid import UUID

from stoker.exceptions import BrokerUnavailable
from stoker.models import UniqueKey
from stoker.models.job import NewJob
from stoker.models.unique_key import (
    JOB_HAS_ENDED,
    JOB_HAS_STARTED,
    NO_MATTER_WHAT,
    Condition,
    KeySeen,
    Taking,
)
from stoker.store.waiting import Held, hold

from .keys import UniqueClaim

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
    seen: KeySeen | None = None
    """What the job that is there did."""
    held: Held | None = None
    """Where it waits, if it had to be held."""


@dataclass(slots=True)
class _Plan:
    """What is to be done after a look."""

    takings: list[tuple[Taking, Condition]] = field(default_factory=list)
    to_hold: dict[bool, dict[UUID, str]] = field(default_factory=dict)
    """Whether alone -> job id -> where it waits."""


class Keys:
    """Keys that are asked for together.

    Args:
        alias: of the database.
        wanted: key -> what is asked of it, and the id that the new job would have.
        holds: whether jobs that are kept are held, too. Outside of a transaction there is nothing
            that they would not see.
    """

    def __init__(
        self, alias: str, wanted: Mapping[UUID, tuple[UniqueClaim, UUID]], *, holds: bool
    ) -> None:
        self.now_us = 0
        """The time of the last look, on the database's clock."""
        self._alias = alias
        self._keys = UniqueKey.objects.using(alias)
        self._open = dict(wanted)
        self._holds = holds
        self._held: dict[UUID, Held] = {}
        self._plan: _Plan | None = None
        self.decided: dict[UUID, Decision] = {}

    @property
    def is_decided(self) -> bool:
        return not self._open

    def look(self) -> None:
        """See whose the keys are, and decide what can be decided on that alone."""
        plan = _Plan()
        self.now_us, seen = self._keys.look(self._open) if self._open else (0, {})
        for key_id, (claim, job_id) in list(self._open.items()):
            key = seen.get(key_id)
            if key is None:
                plan.takings.append((self._taking(claim, job_id), NO_MATTER_WHAT))
            elif key.job_id == job_id:
                self._settle(key_id, Decision(Fate.ENQUEUED, job_id, key.taken_us))
            elif _waits(key, claim):
                self._keep_or_hold(key, claim, plan)
            elif condition := self._may_be_taken(key, claim):
                taking = self._taking(claim, job_id)._replace(old_job_id=key.job_id)
                if condition is not NO_MATTER_WHAT:
                    taking = taking._replace(over_us=self.now_us)
                plan.takings.append((taking, condition))
            else:
                self._settle(key_id, Decision(Fate.KEPT, key.job_id, key.taken_us, key))
        self._plan = plan

    def decide(self) -> None:
        """Take the keys that are free, and hold the jobs that wait under the others, in the open
        transaction. A look from before it is good enough to begin with.

        Raises:
            KeyInMotion: a key was never what it had seemed to be.
        """
        for _ in range(ROUNDS):
            if self._plan is None:
                self.look()
            self._carry_out()
            if self.is_decided:
                return
        claim, _ = next(iter(self._open.values()))
        raise KeyInMotion(
            f"The key {claim.name!r} changes hands faster than it can be looked at, or the open "
            "transaction does not see what others have committed since it began: try again."
        )

    def only_taking(self) -> tuple[Taking, Condition] | None:
        """What the look has come to, where that is to take one key and nothing else."""
        if self._plan is None or len(self._open) != 1 or len(self._plan.takings) != 1:
            return None
        return self._plan.takings[0]

    def take_and_add(self, job: NewJob, identity: str) -> bool:
        """Do that, and add the job, where one statement can. Returns whether it is done."""
        taking = self.only_taking()
        if taking is None or not self._keys.take_and_add(*taking, job, identity):
            return False
        self._are_ours([taking[0]])
        return True

    def _carry_out(self) -> None:
        plan, self._plan = self._plan, None
        assert plan is not None
        for alone, waits in plan.to_hold.items():
            self._held |= hold(self._alias, waits, alone=alone)
        new = [taking for taking, _ in plan.takings if taking.old_job_id is None]
        if new and self._keys.insert(new):
            self._are_ours(new)
        over: dict[Condition, list[Taking]] = {}
        for taking, condition in plan.takings:
            if taking.old_job_id is not None:
                over.setdefault(condition, []).append(taking)
        for condition, takings in over.items():
            if self._keys.take_over(takings, condition):
                self._are_ours(takings)

    def _keep_or_hold(self, key: KeySeen, claim: UniqueClaim, plan: _Plan) -> None:
        """What is held by now, or need not be, is decided; the others are looked at once more."""
        changes = claim.on_conflict in CHANGES
        held = self._held.get(key.job_id)
        if held is not None and held.table == key.waits:
            fate = Fate.CHANGED if changes else Fate.KEPT
            self._settle(key.key_id, Decision(fate, key.job_id, key.taken_us, key, held))
        elif not (changes or self._holds):
            self._settle(key.key_id, Decision(Fate.KEPT, key.job_id, key.taken_us, key))
        elif key.waits is not None:
            plan.to_hold.setdefault(changes, {})[key.job_id] = key.waits

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

    def _are_ours(self, takings: list[Taking]) -> None:
        for one in takings:
            self._settle(one.key_id, Decision(Fate.ENQUEUED, one.job_id, one.taken_us))

    def _settle(self, key_id: UUID, decision: Decision) -> None:
        del self._open[key_id]
        self.decided[key_id] = decision


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
