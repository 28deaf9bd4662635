"""A cluster without processes that records outcomes as a real one may: in batches, in any order,
and some of them too late."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence

from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import ClaimRequest, Delivery, Return
from stoker.conf import settings_for
from stoker.jobs.cancel import sweep_requests
from stoker.jobs.execute import Executor
from stoker.jobs.outcomes import Attempted
from stoker.jobs.package import sealer_for
from stoker.jobs.record import finish
from stoker.models import Ready


class Runner:
    """Runs due jobs until there are none.

    Args:
        loss_rate: how often an outcome is lost, so that the job is run again.
    """

    def __init__(self, chance: random.Random, loss_rate: float) -> None:
        self.settings = settings_for()
        self.broker = broker_for(self.settings)
        self.executor = Executor(self.settings, worker_id="test")
        self.chance = chance
        self.loss_rate = loss_rate
        self.lost: list[Attempted] = []

    def run(self) -> None:
        while deliveries := self._claim():
            self.chance.shuffle(deliveries)
            outcomes = [self.executor.run(one) for one in deliveries]
            lost = [one for one in outcomes if self.chance.random() < self.loss_rate]
            self._lose(lost)
            kept = [one for one in outcomes if one not in lost]
            while kept:
                size = self.chance.randint(1, len(kept))
                assert not finish(self.settings, self.broker, kept[:size])
                kept = kept[size:]
            self._come_late()
        self._come_late()
        assert not Ready.objects.exists(), "a claim has left jobs behind"

    def _claim(self) -> list[Delivery]:
        sweep_requests(self.settings)
        return self.broker.claim(
            ClaimRequest(self.chance.randint(1, 8), holder=uuid.uuid4(), lease_seconds=60)
        )

    def _lose(self, lost: Sequence[Attempted]) -> None:
        """Release these jobs, so that they run again."""
        self.broker.settle(
            again=[Return(one.delivery.lease, attempts=one.delivery.attempt - 1) for one in lost]
        )
        self.lost += lost

    def _come_late(self) -> None:
        """Record the lost outcomes too late, and check that nothing changes."""
        if self.lost:
            leases = {one.delivery.lease for one in self.lost}
            assert finish(self.settings, self.broker, self.lost) == leases


class StepByStep:
    """Claims jobs and records their ends in the order that the test wants."""

    def __init__(self) -> None:
        self.settings = settings_for()
        self.broker = broker_for(self.settings)
        self.executor = Executor(self.settings, worker_id="test")
        self.running: dict[str, Delivery] = {}
        """The claimed jobs by their last argument, or by the task's name without one."""

    def claim(self) -> list[str]:
        """Claim all waiting jobs, except cancelled ones. Return their names."""
        sweep_requests(self.settings)
        request = ClaimRequest(100, holder=uuid.uuid4(), lease_seconds=60)
        claimed: dict[str, Delivery] = {}
        while deliveries := self.broker.claim(request):  # the first claim may leave some behind
            claimed |= {self._name(one): one for one in deliveries}
        self.running |= claimed
        return sorted(claimed)

    def end(self, *names: str) -> None:
        """Run these claimed jobs, and record their ends in one transaction."""
        attempted = [self.executor.run(self.running.pop(name)) for name in names]
        assert not finish(self.settings, self.broker, attempted)

    def run_all(self) -> None:
        """Run the claimed and the waiting jobs one by one until there are none."""
        while self.running or self.claim():
            self.end(min(self.running))

    def _name(self, delivery: Delivery) -> str:
        package = sealer_for(self.settings).open(delivery.package)
        return str(package.args[-1]) if package.args else package.task.rpartition(".")[2]
