"""How jobs ended, read from the store."""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from django.db import transaction

from stoker.brokers.contract import Delivery, Return
from stoker.brokers.dispatch import Dispatch
from stoker.models import Attempt, Cancellation, Claimed, DeadLetter, Job

from tests.app import chaos, tasks
from tests.cluster.clusters import WAIT_SECONDS, ProcessCluster, wait_for
from tests.story.beats import spans

SHORT, LONGEST = timedelta(milliseconds=1), timedelta(milliseconds=20)
ROUNDS = 30


@dataclass(frozen=True)
class End:
    """How one job ended."""

    job: Job
    attempts: list[Attempt]
    """The attempts that did not succeed."""
    dead_letter: DeadLetter | None


def end_of(result: Any, cluster: ProcessCluster, seconds: float = WAIT_SECONDS) -> End:
    """Wait for the job to end."""
    jobs = Job.objects.filter(pk=result.id)
    wait_for(
        lambda: jobs.exclude(status=None).exists(),
        lambda: f"job {result.id} has not ended\n{cluster.tail()}",
        seconds,
    )
    return End(
        jobs.get(),
        list(Attempt.objects.filter(job_id=result.id).order_by("number")),
        DeadLetter.objects.filter(job_id=result.id).first(),
    )


def value_of(result: Any, cluster: ProcessCluster) -> Any:
    """Wait for the job to succeed and return its value."""
    job = end_of(result, cluster).job
    assert job.status == Job.Status.SUCCESSFUL, f"{job.reason}\n{cluster.tail()}"
    result.refresh()
    return result.return_value


def let_it_prefetch(
    cluster: ProcessCluster,
    task: Any = tasks.add,
    arguments: tuple[Any, ...] = (1, 2),
    short: timedelta = SHORT,
) -> None:
    """Run short jobs, so that the cluster prefetches; it does not prefetch after long jobs. On a
    busy machine short jobs may take long, so more of them follow, for a number of rounds."""

    def were_short() -> bool:
        results = task.enqueue_many([(arguments, {})] * 200)
        jobs = Job.objects.filter(pk__in=[one.id for one in results]).exclude(status=None)
        wait_for(lambda: jobs.count() == len(results), cluster.tail)
        last = sorted(jobs.values_list("finished_at", "started_at"))[-100:]
        took = [end - start for end, start in last]
        return sum(took, timedelta()) < len(took) * short and max(took) < LONGEST

    for _ in range(ROUNDS):
        if were_short():
            return


@dataclass(frozen=True)
class Line:
    """Two long jobs, and short ones behind them."""

    beats: Path
    long: list[Any]
    short: list[Any]

    @property
    def started(self) -> list[Any]:
        """The short jobs that a worker has started."""
        seen = spans(self.beats)
        return [one for one in self.short if one.id in seen]


def put_behind_long_jobs(
    cluster: ProcessCluster,
    may_end: Path,
    seconds: float = 0.0,
    *,
    cancelled: str = "",
    **options: Any,
) -> Line:
    """Let the two workers of a cluster run a long job each while it holds short ones, which take
    that many seconds. Those that it cannot start it releases after half a second.

    Args:
        cancelled: the reason of requests to cancel the short ones, which are stored with the jobs.
    """
    beats = may_end.with_name("beats")
    task = chaos.beat.using(**options)
    let_it_prefetch(cluster, task, (str(beats), seconds), SHORT + timedelta(seconds=seconds))
    long = ((str(beats), 10 * WAIT_SECONDS, str(may_end)), {})
    with transaction.atomic():
        results = task.enqueue_many([long, long, *[((str(beats), seconds), {})] * 60])
        if cancelled:
            Cancellation.objects.ask_all([UUID(one.id) for one in results[2:]], cancelled)
    line = Line(beats, results[:2], results[2:])
    wait_for(lambda: {one.id for one in line.long} <= set(spans(beats)), cluster.tail)
    return line


def take_over(result: Any, broker: Dispatch, cluster: ProcessCluster) -> Delivery:
    """Take a job from the cluster, as another cluster would after the end of its lease."""
    held = Claimed.objects.filter(pk=result.id)
    wait_for(held.exists, cluster.tail)
    lease_id = held.get().lease_id
    # In one statement, or this cluster's own upkeep may rescue it first.
    new_lease_id = lease_id ^ 1
    assert held.filter(lease_id=lease_id).update(
        lease_id=new_lease_id, holder=uuid4(), leased_until_us=2**62
    )
    row = held.get()
    return Delivery(UUID(result.id), new_lease_id, b"", row.queue, 0, row.attempts)


def give_back(delivery: Delivery, broker: Dispatch) -> None:
    assert not broker.settle(again=[Return(delivery.lease, attempts=delivery.attempt)])
