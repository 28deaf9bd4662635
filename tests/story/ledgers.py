"""What the ledger and the store must say after a story, whatever happened in it."""

from collections import Counter, defaultdict
from itertools import pairwise

from stoker.brokers.adapters import broker_for
from stoker.brokers.carried import CarriedBroker
from stoker.brokers.fronted import FrontedBroker
from stoker.conf import settings_for
from stoker.inspect.doctor.examination import examine
from stoker.models import Attempt, Blocked, Claimed, DeadLetter, Deferred, Job, Outgoing, Ready

from tests.app.models import Ledger


def unfinished() -> dict[str, int]:
    """How many jobs wait or run, by state; empty when nothing does. A place is looked at before
    those to which jobs go from there.

    One that goes back to a place that was looked at before it moves is found by a second look.

    Raises:
        BrokerUnavailable: nobody can say so now.
    """
    return _waiting_or_running() or _waiting_or_running()


def _waiting_or_running() -> dict[str, int]:
    broker = broker_for(settings_for())
    counts = Counter({"in the outbox": Outgoing.objects.count()})
    if isinstance(broker, CarriedBroker):
        counts["coming"] = sum(broker.transport.counts().values())
    tables = {"ready": Ready, "deferred": Deferred, "blocked": Blocked, "claimed": Claimed}
    counts.update({name: table.objects.count() for name, table in tables.items()})
    if isinstance(broker, FrontedBroker):
        for size in broker.behind.sizes().values():
            counts.update(size)
    found = {name: count for name, count in counts.items() if count}
    if not found and (moving := Job.objects.filter(status=None).count()):
        return {"on the move from one table to another": moving}
    return found


def assert_doctor_is_content() -> None:
    """He finds no fault, be it while clusters are at work or afterwards."""
    report = examine(settings_for())
    assert report.is_healthy, report.findings


def assert_all_recorded_once(job_ids: list[str]) -> None:
    """Every job ended in the one way that it should: recorded as successful, by one attempt. What a
    server brings once more after that is known."""
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
    """No attempt of a job began before the one before it had ended."""
    attempts = defaultdict(list)
    for line in Ledger.objects.order_by("started_ns"):
        attempts[line.job_id].append(line)
    for job_id, lines in attempts.items():
        for before, after in pairwise(lines):
            ended = before.finished_ns or before.started_ns
            assert ended <= after.started_ns, f"two attempts of {job_id} overlap: {before}, {after}"


def executions() -> tuple[int, int]:
    """Attempts that began, and those of them that were cut off."""
    return Ledger.objects.count(), Ledger.objects.filter(finished_ns=None).count()
