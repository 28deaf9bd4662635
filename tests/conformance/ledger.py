"""A ledger of the leases that each holder believed to have, and from when to when."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise

from stoker.brokers.contract import Broker, ClaimRequest, Delivery, LeaseId, Return
from stoker.models.job import Message

from tests.conformance.stands import message
from tests.conformance.threads import patiently

CLOCKS_DIFFER_SECONDS = 0.005
"""SQLite's clock counts in milliseconds."""
LEASE_SECONDS = (0.03, 0.1, 0.4)


@dataclass
class Belief:
    """The time in which a holder could rely on its lease."""

    attempt: int
    is_rescue: bool
    since: float
    until: float


class Ledger:
    """Calls the broker and records what the answers mean for the holder."""

    VERBS = ("enqueue", "claim", "extend", "ack", "release", "rescue", "dawdle")
    WEIGHTS = (2, 5, 3, 2, 2, 3, 1)

    def __init__(self) -> None:
        self.enqueued: list[uuid.UUID] = []
        self.acked: list[uuid.UUID] = []
        self._beliefs: dict[uuid.UUID, dict[LeaseId, Belief]] = defaultdict(dict)
        self._lock = threading.Lock()

    def do(
        self,
        verb: str,
        broker: Broker,
        holder: uuid.UUID,
        held: list[Delivery],
        choose: random.Random,
    ) -> list[Delivery]:
        """Call one method and return the deliveries held afterwards."""
        some = choose.sample(held, choose.randint(0, len(held)))
        rest = [delivery for delivery in held if delivery not in some]
        lease_seconds = choose.choice(LEASE_SECONDS)
        if verb == "enqueue":
            self._enqueue(broker, [message(priority=choose.randint(-2, 2)) for _ in range(5)])
        elif verb in {"claim", "rescue"}:
            return held + self._take(verb, broker, holder, lease_seconds, choose.randint(1, 6))
        elif verb == "extend":
            return rest + self._extend(broker, some, lease_seconds)
        elif verb == "ack":
            self._ack(broker, some)
            return rest
        elif verb == "release":
            self._release(broker, some, choose.choice((0.0, 0.0, 0.02)))
            return rest
        else:
            time.sleep(choose.uniform(0, 0.05))
        return held

    def _enqueue(self, broker: Broker, messages: list[Message]) -> None:
        patiently(lambda: broker.enqueue(messages))
        with self._lock:
            self.enqueued += [one.job_id for one in messages]

    def _take(
        self, verb: str, broker: Broker, holder: uuid.UUID, lease_seconds: float, limit: int
    ) -> list[Delivery]:
        def take() -> tuple[float, list[Delivery]]:
            before = time.monotonic()
            if verb == "rescue":
                return before, broker.claim_expired(
                    ClaimRequest(limit, holder=holder, lease_seconds=lease_seconds)
                )
            return before, broker.claim(
                ClaimRequest(limit, holder=holder, lease_seconds=lease_seconds)
            )

        before, deliveries = patiently(take)
        after = time.monotonic()
        with self._lock:
            for one in deliveries:
                assert one.lease_id not in self._beliefs[one.job_id], "an old lease id came again"
                self._beliefs[one.job_id][one.lease_id] = Belief(
                    one.attempt, verb == "rescue", after, before + lease_seconds
                )
        return deliveries

    def _extend(self, broker: Broker, some: list[Delivery], lease_seconds: float) -> list[Delivery]:
        def extend() -> tuple[float, set[object]]:
            before = time.monotonic()
            leases = [delivery.lease for delivery in some]
            return before, set(broker.extend(leases, lease_seconds=lease_seconds))

        before, stale = patiently(extend)
        still = [delivery for delivery in some if delivery.lease not in stale]
        with self._lock:
            for one in still:
                self._beliefs[one.job_id][one.lease_id].until = before + lease_seconds
        return still

    def _ack(self, broker: Broker, some: list[Delivery]) -> None:
        self._give_up(some)
        stale = patiently(lambda: broker.settle([delivery.lease for delivery in some]))
        with self._lock:
            self.acked += [one.job_id for one in some if one.lease not in stale]

    def _release(self, broker: Broker, some: list[Delivery], delay_seconds: float) -> None:
        self._give_up(some)
        returns = [Return(one.lease, delay_seconds, attempts=one.attempt) for one in some]
        patiently(lambda: broker.settle(again=returns))

    def _give_up(self, some: list[Delivery]) -> None:
        """Another holder may have these jobs as soon as the broker is called."""
        now = time.monotonic()
        with self._lock:
            for one in some:
                belief = self._beliefs[one.job_id][one.lease_id]
                belief.until = min(belief.until, now)

    def check(self, *, leases_in_two_steps: bool = False) -> None:
        """Check that leases did not overlap, claims were counted, and jobs were acked once.

        Args:
            leases_in_two_steps: whether a claim reads its jobs after it has leased them. If a lease
                ends in between, the job is rescued, and no caller sees that claim.
        """
        counted = Counter(self.acked)
        assert {job_id: n for job_id, n in counted.items() if n > 1} == {}, "acked twice"
        assert set(counted) == set(self.enqueued), "lost, or made up"
        assert any(belief.is_rescue for one in self._beliefs.values() for belief in one.values())
        for job_id, by_lease in self._beliefs.items():
            # Not by `since` alone: an answer can arrive after the lease has ended.
            beliefs = sorted(
                by_lease.values(), key=lambda one: (one.attempt, one.is_rescue, one.since)
            )
            for earlier, later in pairwise(beliefs):
                both = f"{job_id}: {earlier}, {later}"
                if earlier.since < earlier.until and later.since < later.until:
                    assert earlier.until <= later.since + CLOCKS_DIFFER_SECONDS, both
                untold = later.attempt - earlier.attempt - (not later.is_rescue)
                may_be_untold = leases_in_two_steps and later.is_rescue
                assert untold == 0 or (untold > 0 and may_be_untold), both
