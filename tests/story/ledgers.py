"""Checks of the ledger and the store after a story."""

from collections import Counter, defaultdict
from itertools import pairwise

from stoker.brokers.adapters import broker_for
from stoker.conf import settings_for
from stoker.inspect.doctor.examination import examine
from stoker.models import Attempt, Blocked, Claimed, DeadLetter, Deferred, Job, Outgoing, Ready

from tests.app.models import Ledger


def unfinished() -> dict[str, int]:
    """Return how many jobs wait or run, by state. Tables are read in the order in which jobs move.

    A second look finds jobs that moved back to a table that was read before.

    Raises:
        BrokerUnavailable: the broker cannot be asked now.
    """
    return _waiting_or_running() or _waiting_or_running()


def _waiting_or_running() -> dict[str, int]:
    broker = broker_for(settings_for())
    counts = Counter({"in the outbox": Outgoing.objects.count()})
    if broker.arrivals is not None:
        counts["coming"] = sum(broker.arrivals.transport.counts().values())
    tables = {"ready": Ready, "deferred": Deferred, "blocked": Blocked, "claimed": Claimed}
    counts.update({name: table.objects.count() for name, table in tables.items()})
    if broker.broker is not None:
        for size in broker.broker.sizes().values():
            counts.update(size)
    found = {name: count for name, count in counts.items() if count}
    if not found and (moving := Job.objects.filter(status=None).count()):
        return {"moving from one table to another": moving}
    return found


def assert_doctor_finds_no_fault() -> None:
    """Assert that the doctor finds no fault, even while clusters are working."""
    report = examine(settings_for())
    assert report.is_healthy, report.findings


def assert_all_recorded_once(job_ids: list[str]) -> None:
    """Assert that each job was recorded once, as successful. A broker may deliver a job again after
    that; these messages are ignored."""
    left = unfinished()
    left.pop("coming", None)
    assert not left
    jobs = {str(job.pk): job for job in Job.objects.filter(pk__in=job_ids)}
    lost = set(job_ids) - set(jobs)
    begun = lost & set(Ledger.objects.values_list("job_id", flat=True))
    assert not lost, f"{len(lost)} jobs are lost, {len(begun)} of them had begun: {sorted(lost)}"
    unsuccessful = {
        job_id: job.reason for job_id, job in jobs.items() if job.status != "SUCCESSFUL"
    }
    assert not unsuccessful, f"{unsuccessful}, dead letters: {DeadLetter.objects.count()}"
    finished = defaultdict(list)
    for line in Ledger.objects.exclude(finished_ns=None):
        finished[line.job_id].append(line)
    for job_id, job in jobs.items():
        numbers = [line.attempt for line in finished[job_id]]
        assert job.attempts in numbers, f"{job_id} is recorded by attempt {job.attempts}: {numbers}"
        assert not Attempt.objects.filter(job_id=job_id, number=job.attempts).exists()


def assert_no_overlap() -> None:
    """Assert that each attempt of a job ended before the next began."""
    attempts = defaultdict(list)
    for line in Ledger.objects.order_by("started_ns"):
        attempts[line.job_id].append(line)
    for job_id, lines in attempts.items():
        for before, after in pairwise(lines):
            ended = before.finished_ns or before.started_ns
            assert ended <= after.started_ns, f"two attempts of {job_id} overlap: {before}, {after}"


def executions() -> tuple[int, int]:
    """Return how many attempts began and how many of them were cut off."""
    return Ledger.objects.count(), Ledger.objects.filter(finished_ns=None).count()
