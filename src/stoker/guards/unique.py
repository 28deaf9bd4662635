"""Unique jobs: decide at the enqueue, in its transaction, which job gets a key.

The outcome depends on the job that has the key and on the new job's ``on_conflict``:

::

                                        keep    replace, postpone    after    raise
    waits, for its first try or a retry kept    changed              kept     refused
    runs                                kept    follows              follows  refused
    is over, but within is not          kept    -                    kept     refused
    is over                             takes the key

With ``until="started"`` a job is over once a cluster has claimed it: the store does not know when
the attempt begins, and a job that has begun may have read data older than the new job's. A waiting
job is held until this transaction ends, so that it does not start before the data of the new job's
caller is committed.

After waiting for a lock, the key is always read again. Keys are taken by conditional statements,
which change nothing if another transaction was faster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from uuid import UUID

from stoker.exceptions import BrokerUnavailable
from stoker.models import UniqueKey
from stoker.models.job import Message
from stoker.models.unique_key import (
    JOB_HAS_ENDED,
    JOB_HAS_STARTED,
    NO_MATTER_WHAT,
    Condition,
    KeySeen,
    Taking,
)
from stoker.store.waiting import Held, hold

from .keys import FOLLOWERS, UniqueClaim

CHANGES = ("replace", "postpone")
"""Policies that change the waiting job."""
LONGEST_IDENTITY = 255
ROUNDS = 20
"""Maximum number of reads of a key. Two or three are usual; more mean that its job changed its
state in between."""


class KeyInMotion(BrokerUnavailable):
    """Raised if other transactions kept changing a key between its read and write. A retry in a new
    transaction may succeed."""


class Fate(Enum):
    ENQUEUED = "enqueued"
    """The new job has the key."""
    KEPT = "kept"
    """The existing job is unchanged."""
    CHANGED = "changed"
    """The existing job waits and takes over the new job's arguments."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about one key."""

    fate: Fate
    job_id: UUID
    """The new job's id, or the existing job's."""
    taken_us: int
    """Time of the enqueue of the first job with this key, in microseconds on the database's
    clock."""
    seen: KeySeen | None = None
    """State of the existing job."""
    held: Held | None = None
    """The existing job's row, if it had to be locked."""
    follows: UUID | None = None
    """The running job that the new job must wait for."""


@dataclass(slots=True)
class _Plan:
    """The writes to make after the keys were read."""

    takings: list[tuple[Taking, Condition]] = field(default_factory=list)
    to_hold: dict[bool, dict[UUID, str]] = field(default_factory=dict)
    """The waiting jobs to lock. The key says whether their locks are exclusive (True) or shared
    (False); the value maps each job id to the table in which the job waits."""


class WantedKeys:
    """The unique keys that one enqueue asks for.

    Args:
        alias: of the database.
        wanted: key -> claim, and id of the new job.
        holds: whether to lock the existing jobs of keys that stay unchanged, too. Not needed
            outside a transaction.
    """

    def __init__(
        self, alias: str, wanted: Mapping[UUID, tuple[UniqueClaim, UUID]], *, holds: bool
    ) -> None:
        self.now_us = 0
        """Time of the last read, on the database's clock."""
        self._alias = alias
        self._keys = UniqueKey.objects.using(alias)
        self._open = dict(wanted)
        self._holds = holds
        self._held: dict[UUID, Held] = {}
        self._plan: _Plan | None = None
        self._follows: dict[UUID, UUID] = {}
        """Key -> the running job that the new job must wait for, if it gets the key. The key may
        be taken although a taking of several keys reports a failure."""
        self.decided: dict[UUID, Decision] = {}

    @property
    def is_decided(self) -> bool:
        return not self._open

    def look(self) -> None:
        """Read the keys, and decide about the keys that need no write."""
        plan = _Plan()
        self.now_us, seen = self._keys.look(self._open) if self._open else (0, {})
        for key_id, (claim, job_id) in list(self._open.items()):
            key = seen.get(key_id)
            if key is None:
                self._follows.pop(key_id, None)
                plan.takings.append((self._taking(claim, job_id), NO_MATTER_WHAT))
            elif key.job_id == job_id:
                follows = self._follows.get(key_id)
                decision = Decision(Fate.ENQUEUED, job_id, key.taken_us, follows=follows)
                self._settle(key_id, decision)
            elif _waits(key, claim):
                self._keep_or_hold(key, claim, plan)
            elif condition := self._may_be_taken(key, claim):
                taking = self._taking(claim, job_id)._replace(old_job_id=key.job_id)
                if condition is NO_MATTER_WHAT:
                    self._follows[key_id] = key.job_id
                else:
                    self._follows.pop(key_id, None)
                    taking = taking._replace(over_us=self.now_us)
                plan.takings.append((taking, condition))
            else:
                self._settle(key_id, Decision(Fate.KEPT, key.job_id, key.taken_us, key))
        self._plan = plan

    def decide(self) -> None:
        """Take the free keys and lock the waiting jobs of the others, in the open transaction.

        Starts from an earlier ``look()`` if there is one.

        Raises:
            KeyInMotion: a key changed between every read and write.
        """
        for _ in range(ROUNDS):
            if self._plan is None:
                self.look()
            self._carry_out()
            if self.is_decided:
                return
        claim, _ = next(iter(self._open.values()))
        raise KeyInMotion(
            f"The key {claim.name!r} changes faster than it can be read, or the open transaction "
            "does not see what others have committed since it began: try again."
        )

    def only_taking(self) -> tuple[Taking, Condition] | None:
        """Return the key to take and its condition, if that is the only write needed after the last
        read; else None."""
        if self._plan is None or len(self._open) != 1 or len(self._plan.takings) != 1:
            return None
        return self._plan.takings[0]

    def take_and_add(self, job: Message, identity: str) -> bool:
        """Take the key and insert the job in one statement, if the database supports that. Return
        whether both were done."""
        taking = self.only_taking()
        if taking is None or not self._keys.take_and_add(*taking, job, identity):
            return False
        self._are_ours([taking[0]], taking[1])
        return True

    def _carry_out(self) -> None:
        plan, self._plan = self._plan, None
        assert plan is not None
        for alone, waits in plan.to_hold.items():
            self._held |= hold(self._alias, waits, alone=alone)
        new = [taking for taking, _ in plan.takings if taking.old_job_id is None]
        if new and self._keys.insert(new):
            self._are_ours(new, NO_MATTER_WHAT)
        over: dict[Condition, list[Taking]] = {}
        for taking, condition in plan.takings:
            if taking.old_job_id is not None:
                over.setdefault(condition, []).append(taking)
        for condition, takings in over.items():
            if self._keys.take_over(takings, condition):
                self._are_ours(takings, condition)

    def _keep_or_hold(self, key: KeySeen, claim: UniqueClaim, plan: _Plan) -> None:
        """Decide about a key if its job is locked or needs no lock. Otherwise plan to lock the
        job."""
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
        """Return the condition under which the key may be taken from its job, or None if it may not
        be taken."""
        if claim.until == "finished" and key.is_alive:
            return NO_MATTER_WHAT if claim.on_conflict in FOLLOWERS else None
        if key.until_us > self.now_us:
            return None
        return JOB_HAS_ENDED if claim.until == "finished" else JOB_HAS_STARTED

    def _taking(self, claim: UniqueClaim, job_id: UUID) -> Taking:
        until_us = self.now_us + claim.within_us if claim.within_us else 0
        return Taking(claim.key_id, claim.name, job_id, self.now_us, until_us)

    def _are_ours(self, takings: list[Taking], condition: Condition) -> None:
        for one in takings:
            follows = one.old_job_id if condition is NO_MATTER_WHAT else None
            decision = Decision(Fate.ENQUEUED, one.job_id, one.taken_us, follows=follows)
            self._settle(one.key_id, decision)

    def _settle(self, key_id: UUID, decision: Decision) -> None:
        del self._open[key_id]
        self.decided[key_id] = decision


def identity_of(claim: UniqueClaim) -> str:
    """Return the identity under which a job's dead letter is stored: the key's name and its id.

    The id is included because a collation may treat two names as equal.
    """
    key = claim.key_id.hex
    return f"{claim.name[: LONGEST_IDENTITY - len(key) - 1]} {key}"


def key_id_of(identity: str) -> UUID | None:
    """Return the id of the unique key in an identity. None if the job had none: its identity is
    then empty, or after a requeue the id of its first job."""
    name, _, key_id = identity.rpartition(" ")
    return UUID(key_id) if name else None


def _waits(key: KeySeen, claim: UniqueClaim) -> bool:
    """Return whether the key's job still waits, so that it keeps the key."""
    if claim.until == "finished":
        return key.is_alive and key.waits is not None
    return key.waits_for_its_first_attempt
