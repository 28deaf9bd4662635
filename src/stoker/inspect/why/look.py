"""Find where a job is, and explain why it is not running."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from stoker.brokers.adapters import broker_for
from stoker.brokers.outage import outage_error
from stoker.conf import Settings
from stoker.inspect.stats import (
    ClusterState,
    RunningJob,
    WorkerState,
    clusters,
    longest_silence,
)
from stoker.inspect.waits import waits_of
from stoker.jobs.cancel import LONGEST_REASON
from stoker.jobs.states import ONLY_BROKER_MAY_KNOW, JobState, Progress, progress_of, rows_at_broker
from stoker.models import (
    Blocked,
    Cancellation,
    Claimed,
    Cluster,
    DeadLetter,
    Deferred,
    Job,
    Ready,
    Requeue,
    Step,
)
from stoker.store.engines.base import aware
from stoker.store.engines.sessions import explained
from stoker.store.written import MICROSECONDS, microseconds, moment
from stoker.tasks.arguments import CUT
from stoker.values.durations import in_words

from .answer import Answer, Asked, Kind, at, when
from .ready import answer_ready, with_next_obstacle
from .waiting import LATE_SECONDS, answer_blocked, answer_deferred, answer_retry, answer_step

Seat = tuple[ClusterState, WorkerState, RunningJob]


def answer_running(asked: Asked, row: Claimed) -> Answer:
    """Answer for a job that is leased in the store."""
    asked.queue = row.queue
    cluster = next((one for one in asked.clusters if one.id == str(row.holder)), None)
    if cluster is None:
        return _answer_of_stranger(asked, row) or _answer_silent(asked, row, None)
    if not asked.is_alive(cluster):
        return _answer_silent(asked, row, cluster)
    seat = _seat_of(asked)
    if seat is not None:
        return _answer_at_work(asked, seat, row.attempts)
    return _answer_handed_out(asked, cluster, row.attempts)


def _answer_handed_out(asked: Asked, cluster: ClusterState, attempt: int) -> Answer:
    """Answer for a claimed job that no worker had started at the last heartbeat."""
    facts: dict[str, Any] = {"cluster": cluster.id, "host": cluster.host, "attempt": attempt}
    for worker in cluster.workers:
        if str(asked.job_id) in worker.handed_out:
            facts |= {"worker": worker.number, "pid": worker.pid}
            return asked.answer(
                Kind.HANDED_OUT,
                f"It was handed to worker {worker.number} (process {worker.pid}) on "
                f"{cluster.host}, {_busy_with(asked, cluster, worker)}. If it does not start, "
                "the cluster takes it back within a second, and sends it to another worker or "
                "releases it.",
                **facts,
            )
    return asked.answer(
        Kind.HANDED_OUT,
        f"The cluster on {cluster.host} (process {cluster.pid}) has it, and had not begun it at "
        f"its last heartbeat, {in_words(cluster.silent_seconds)} ago: it waits there for a free "
        "worker, or has begun since.",
        **facts,
    )


def _busy_with(asked: Asked, cluster: ClusterState, worker: WorkerState) -> str:
    """Name the job that a worker is busy with."""
    known = {
        (one.id, each.number): each.running
        for one in clusters(asked.settings)
        for each in one.workers
    }
    running = known.get((cluster.id, worker.number), ())
    if not running:
        return "which was idle at the last heartbeat"
    job = running[0]
    since = at(asked.now_us - round(job.seconds * MICROSECONDS))
    name = f"{job.task} {job.job_id[:8]}" if job.task else f"job {job.job_id[:8]}"
    return f"which is busy with {name} since {when(since)}"


def _answer_at_work(asked: Asked, seat: Seat, attempt: int | None) -> Answer:
    cluster, worker, running = seat
    asked.task = asked.task or running.task
    asks = Cancellation.objects.using(asked.alias).filter(pk=asked.job_id).first()
    facts: dict[str, Any] = {
        "cluster": cluster.id,
        "host": cluster.host,
        "worker": worker.number,
        "pid": worker.pid,
        "seconds": running.seconds,
        "attempt": attempt,
        "is_being_cancelled": asks is not None,
    }
    tried = f" in attempt {attempt}" if attempt else ""
    sentence = (
        f"It runs{tried} in worker {worker.number} (process {worker.pid}) on {cluster.host}, for "
        f"{in_words(running.seconds)}."
    )
    if cluster.silent_seconds > longest_silence(asked.settings):
        silence = in_words(cluster.silent_seconds)
        sentence += f" That was {silence} ago: the cluster has sent no heartbeat since."
    if asks is not None:
        because = f" ({asks.reason})" if asks.reason else ""
        sentence += f" It was asked to stop{because}."
    return asked.answer(Kind.RUNNING, sentence, **facts)


def _answer_of_stranger(asked: Asked, row: Claimed) -> Answer | None:
    """Answer for a job that a cluster of another backend on the same store has claimed."""
    clusters = Cluster.objects.using(asked.alias).alive_within(asked.settings.lease_seconds)
    cluster = clusters.filter(pk=row.holder).first()
    if cluster is None:
        return None
    return asked.answer(
        Kind.HANDED_OUT,
        f"The cluster {cluster.name} on {cluster.host} (process {cluster.pid}) has it. That "
        "cluster belongs to another backend: ask that backend (--backend).",
        cluster=str(cluster.pk),
        host=cluster.host,
        attempt=row.attempts,
    )


def _answer_silent(asked: Asked, row: Claimed, cluster: ClusterState | None) -> Answer:
    left = max(0.0, asked.seconds_until(row.leased_until_us))
    facts: dict[str, Any] = {
        "cluster": str(row.holder),
        "host": cluster.host if cluster is not None else None,
        "silent_seconds": cluster.silent_seconds if cluster is not None else None,
        "lease_seconds": left,
    }
    who = "The cluster that had claimed it is gone"
    if cluster is not None:
        silence = in_words(cluster.silent_seconds)
        who = f"The cluster on {cluster.host} that has it has sent no heartbeat for {silence}"
    others = [one for one in asked.clusters if asked.is_alive(one)]
    facts["is_cluster_alive"] = bool(others)
    return asked.answer(
        Kind.CLUSTER_SILENT,
        f"{who}. Its lease ends in {in_words(left)}: then another cluster takes the job over.",
        "" if others else f"No other cluster is alive: start one with {asked.command('run')}.",
        **facts,
    )


def _seat_of(asked: Asked) -> Seat | None:
    """Return where the job ran at the last heartbeat."""
    for cluster in asked.clusters:
        for worker in cluster.workers:
            for running in worker.running:
                if running.job_id == str(asked.job_id):
                    return cluster, worker, running
    return None


KINDS = {
    DeadLetter.Reason.UNREADABLE.value: Kind.UNREADABLE,
    DeadLetter.Reason.UNKNOWN_TASK.value: Kind.UNKNOWN_TASK,
}


def answer_ended(asked: Asked) -> Answer:
    job = asked.job
    assert job is not None
    if job.status == Job.Status.SUCCESSFUL:
        return asked.answer(
            Kind.SUCCESSFUL,
            f"It succeeded at {when(job.finished_at)}, in attempt {job.attempts}.",
            finished_at=job.finished_at,
            started_at=job.started_at,
            attempts=job.attempts,
            worker=job.worker_id,
        )
    if job.status == Job.Status.CANCELLED:
        because = f": {job.reason}" if job.reason else ""
        return asked.answer(
            Kind.CANCELLED,
            f"It was cancelled at {when(job.finished_at)}{because}.",
            finished_at=job.finished_at,
            reason=job.reason,
        )
    return _answer_failed(asked, job)


def _answer_failed(asked: Asked, job: Job) -> Answer:
    letter = _letter_of(asked)
    facts = {"finished_at": job.finished_at, "reason": job.reason, "attempts": job.attempts}
    if letter is not None:
        due_us = letter.requeue_due_us
        facts |= {
            "dead_letter": str(letter.pk),
            "dead_letter_state": letter.state,
            "carried_on_by": None if letter.successor_id is None else str(letter.successor_id),
            "requeued_at_the_latest": None if due_us is None else at(due_us),
        }
    kind = KINDS.get(job.reason.partition(":")[0])
    if kind is not None:
        facts["error"] = letter.message if letter is not None else job.reason
    tried = "1 attempt" if job.attempts == 1 else f"{job.attempts} attempts"
    sentence = f"It failed for good at {when(job.finished_at)}, after {tried}"
    return asked.answer(
        kind or Kind.DEAD_LETTER,
        f"{sentence}: {job.reason}" + (CUT if len(job.reason) == LONGEST_REASON else ""),
        _advice(asked, letter),
        **facts,
    )


def _letter_of(asked: Asked) -> DeadLetter | None:
    """Return the dead letter of the job. If the job was requeued, the dead letter names the newest
    job of the same logical job."""
    letters = DeadLetter.objects.using(asked.alias)
    own = letters.filter(job_id=asked.job_id).first()
    if own is not None:
        return own
    requeues = Requeue.objects.using(asked.alias)
    sent = requeues.filter(from_job_id=asked.job_id).first()
    return letters.filter(identity=sent.identity).first() if sent is not None else None


def _advice(asked: Asked, letter: DeadLetter | None) -> str:
    if letter is None:
        return "Its dead letter is not kept any more: enqueue the job again if it is still needed."
    if letter.state == DeadLetter.State.OPEN:
        again = " It is also requeued automatically." if letter.requeue_due_us is not None else ""
        requeue = asked.command("dead requeue", letter.pk)
        return f"Fix the cause, then {requeue}, or `discard`.{again}"
    if letter.state == DeadLetter.State.REQUEUED:
        return f"It was requeued as job {letter.successor_id}: ask about that job."
    return f"Nothing needs to be done: its dead letter is {letter.state}."


LOOKS = 3
"""Maximum number of reads, because a read may miss a job that moves between tables."""


def why(
    settings: Settings, job_id: UUID, progress: Progress | None = None, row: Any = None
) -> Answer:
    """Explain why a job is not running; or where it runs, or how it ended.

    Args:
        settings: of the job's backend.
        job_id: of the job.
        progress: the job's progress, if the caller has read it already. The answer then has no
        facts about earlier waits, which are in the job's timeline.
        row: the job's row of a hot table, if the caller has read it already: see
        ``timeline.row_of``.

    Returns:
        Exactly one answer, also for an unknown id: the first obstacle that keeps the job from
        running.

    Raises:
        BrokerUnavailable, NotMigrated: the store cannot be read.
    """
    with explained(settings.database):
        for look in range(LOOKS):
            asked = Asked(settings, job_id, *((progress, row) if look == 0 else ()))
            answer = _look(asked)
            if answer is not None:
                return answer
        return _nowhere(asked)


def _look(asked: Asked) -> Answer | None:
    """Return the answer, or None if the job is in no table or has just moved."""
    if asked.job is not None and asked.job.status is not None:
        return _with_waits(asked, answer_ended(asked))
    if asked.may_be(JobState.DEFERRED) and (deferred := asked.row(Deferred)) is not None:
        return with_next_obstacle(asked, answer_deferred(asked, deferred))
    if asked.may_be(JobState.BLOCKED) and (blocked := asked.row(Blocked)) is not None:
        return with_next_obstacle(asked, answer_blocked(asked, blocked))
    if asked.may_be(JobState.READY) and (ready := asked.row(Ready)) is not None:
        return answer_ready(asked, ready)
    is_claimed = asked.may_be(JobState.RUNNING) or asked.may_be(JobState.CLAIMED)
    if is_claimed and (claimed := asked.row(Claimed)) is not None:
        answer = answer_running(asked, claimed)
        return _with_waits(asked, answer) if answer.kind == Kind.RUNNING else answer
    return _in_outbox(asked) or _at_broker(asked)


def _with_waits(asked: Asked, answer: Answer) -> Answer:
    """Add facts about what the job waited for before it started, unless the caller has read the
    job's progress already."""
    if asked.is_read:
        return answer
    progress = progress_of(asked.settings, [asked.job_id]).get(asked.job_id)
    waits = None if progress is None else waits_of(asked.settings, progress)
    if waits is None:
        return answer
    return replace(answer, facts={**answer.facts, "waited": str(waits), "waits": waits.as_facts()})


def _in_outbox(asked: Asked) -> Answer | None:
    for row in broker_for(asked.settings).outgoing([asked.job_id]):
        alias = str(row._state.db)
        asked.task, asked.queue = row.task, row.queue
        alive = [one for one in asked.clusters if asked.is_alive(one)]
        return asked.answer(
            Kind.OUTBOX,
            f"It is in the outbox of the database {alias!r}: its broker does not have it yet.",
            "Clusters relay it within seconds. If it is not relayed, see their log."
            if alive
            else f"Clusters relay it, but none is alive: start one with {asked.command('run')}.",
            database=alias,
            enqueued_at=moment(row.enqueued_at),
            is_cluster_alive=bool(alive),
        )
    return None


def _at_broker(asked: Asked) -> Answer | None:
    """Answer from a broker outside the database."""
    broker = broker_for(asked.settings)
    if broker.capabilities.transactional:
        return None
    row = rows_at_broker(asked.settings, [asked.job_id]).get(asked.job_id)
    if asked.job is None:
        asked.take(row)
    failure = asked.last_failure()
    seat = _seat_of(asked)
    if seat is not None:
        return _answer_at_work(asked, seat, 1 if failure is None else failure.number + 1)
    if not broker.capabilities.look_up:
        return None
    place = broker.states([asked.job_id]).get(asked.job_id)
    if place is None:
        return None
    due_at = row.run_after if row is not None else None
    due_us = None if due_at is None else microseconds(aware(due_at).timestamp())
    is_late = due_us is not None and asked.seconds_until(due_us) < -LATE_SECONDS
    if place == "ready" or is_late:
        return answer_ready(asked, None)
    name = broker.info()["broker"]
    if place == "running":
        sentence = f"A cluster has claimed it from the broker {name}, and not reported it yet."
        return asked.answer(Kind.HANDED_OUT, sentence)
    if due_us is not None and failure is not None:
        return with_next_obstacle(asked, answer_retry(asked, due_us, failure.number, failure))
    until = "start time or its next attempt" if due_at is None else f"start time, {when(due_at)}"
    sentence = f"The broker {name} keeps it until its {until}."
    answer = asked.answer(Kind.AT_BROKER, sentence, broker=name, due_at=due_at)
    return with_next_obstacle(asked, answer)


def _nowhere(asked: Asked) -> Answer:
    step = Step.objects.using(asked.alias).of_jobs([asked.job_id]).first()
    if step is not None and asked.job is None:
        return answer_step(asked, step)
    broker = broker_for(asked.settings)
    is_blind = not broker.capabilities.transactional and not broker.capabilities.look_up
    name = broker.info()["broker"] if is_blind else ""  # asks it; see outage_error()
    if outage_error() is not None:
        if asked.job is None:
            return asked.answer(Kind.AT_BROKER, ONLY_BROKER_MAY_KNOW, is_known=False)
        sentence = "It has not ended, and waits or runs at the broker, which does not answer."
        return asked.answer(Kind.AT_BROKER, sentence, is_known=True)
    if is_blind:
        alive = any(asked.is_alive(one) for one in asked.clusters)
        start = "" if alive else f" No cluster is alive: start one with {asked.command('run')}."
        return asked.answer(
            Kind.AT_BROKER,
            f"It has not ended, and does not run; the broker {name} can't look up single jobs.",
            f"It waits there, unless it was never committed or is not kept any more.{start}",
            broker=name,
            is_cluster_alive=alive,
        )
    if asked.job is not None:
        return asked.answer(
            Kind.LOST,
            "It has not ended and waits nowhere: no cluster will find it.",
            f"{asked.command('doctor')} says how to repair that.",
        )
    made_at = (asked.job_id.int >> 80) / 1000 if asked.job_id.version == 7 else None
    return asked.answer(
        Kind.UNKNOWN,
        "No job has this id: it was never committed, or is not kept any more.",
        "Check KEEP_RESULTS, whether the transaction that enqueued it was rolled back, and whether "
        "it belongs to another backend of TASKS (--backend).",
        made_at=None if made_at is None else datetime.fromtimestamp(made_at, UTC),
    )
