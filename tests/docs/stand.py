"""Moves one job with the code that real processes use, but without the processes."""

import time
from dataclasses import replace
from typing import Any
from uuid import UUID

from stoker.brokers.adapters import broker_for
from stoker.brokers.contract import ClaimRequest, Lease
from stoker.cluster.plan import Plan
from stoker.conf import settings_for
from stoker.jobs.execute import Executor
from stoker.jobs.outcomes import Attempted, Outcome
from stoker.jobs.record import finish
from stoker.jobs.states import progress_of
from stoker.models import (
    Attempt,
    Blocked,
    Cancellation,
    Claimed,
    DeadLetter,
    Deferred,
    Job,
    Need,
    Ready,
    Wait,
)
from stoker.values.ids import parse_job_id


class Stand:
    """One job, and the operations that move it."""

    def __init__(self) -> None:
        self.settings = settings_for()
        self.plan = Plan()
        self.broker = broker_for(self.settings)
        self.executor = Executor(self.settings, worker_id="the stand's")
        self.result: Any = None
        self.delivery: Any = None
        self.other: Any = None
        """The delivery of a job that holds what this one needs."""

    def enqueue(self, task: Any, *args: Any) -> None:
        self.result = task.enqueue(*args)

    def claim(self) -> None:
        holder = self.plan.cluster_id
        [self.delivery] = self.broker.claim(ClaimRequest(10, holder=holder, lease_seconds=60))

    def claim_in_vain(self) -> None:
        """Claim, and check that nothing is leased."""
        assert not self.broker.claim(
            ClaimRequest(10, holder=self.plan.cluster_id, lease_seconds=60)
        )

    def promote(self) -> None:
        assert self.broker.store is not None
        self.broker.store.promote(500)

    def run(self) -> Attempted:
        """Run the attempt as a worker does, without recording it."""
        return self.executor.run(self.delivery)

    def finish(self, attempted: Attempted, **changes: Any) -> set[Lease]:
        return finish(replace(self.settings, **changes), self.broker, [attempted])

    def finish_as(self, outcome: Outcome) -> None:
        """Record the outcome that the sentinel saw."""
        now = time.time()
        self.finish(Attempted(self.delivery, outcome, "the stand's", now, now))

    def state(self) -> str:
        job_id = self.job_id
        found = progress_of(self.settings, [job_id]) if job_id else {}
        return found[job_id].state.value if job_id in found else "none"

    @property
    def job_id(self) -> UUID | None:
        return parse_job_id(self.result.id) if self.result is not None else None

    def rows(self) -> dict[str, list[Any]]:
        """Return everything that the store has about the job."""
        by_job = {
            "ready": Ready,
            "deferred": Deferred,
            "blocked": Blocked,
            "claimed": Claimed,
            "need": Need,
            "cancellation": Cancellation,
            "attempt": Attempt,
            "wait": Wait,
            "dead letter": DeadLetter,
        }
        found: dict[str, list[Any]] = {
            name: list(model._default_manager.filter(job_id=self.job_id).values())
            for name, model in by_job.items()
        }
        return {**found, "job": list(Job.objects.filter(id=self.job_id or UUID(int=0)).values())}
