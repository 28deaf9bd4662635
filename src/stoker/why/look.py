"""Where a job is decides who answers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from stoker.brokers import broker_for, outgoing_of
from stoker.conf import Settings
from stoker.models import Blocked, Claimed, Deferred, Ready, Step
from stoker.models.job import moment
from stoker.progress import JobState, Progress, explained

from .answer import Answer, Kind
from .asked import Asked
from .blocked import answer_blocked
from .deferred import answer_deferred
from .ended import answer_ended
from .ready import answer_ready
from .running import answer_running, answer_running_elsewhere
from .steps import answer_step

LOOKS = 3
"""A job on the move from one table to the next may be missed by one look, not by several."""


def why(
    settings: Settings, job_id: UUID, progress: Progress | None = None, row: Any = None
) -> Answer:
    """Why this job is not running; or where it runs, or how it ended.

    Args:
        settings: of the backend that has it.
        job_id: of the job.
        progress: what is known of it already, where somebody has looked.
        row: its row among those that wait or run, likewise: see ``timeline.row_of``.

    Returns:
        One answer: the first thing that would have to change. It is always one, also of an id that
        nobody knows.

    Raises:
        BrokerUnavailable, NotMigrated: the store can't be read.
    """
    with explained(settings.database):
        for look in range(LOOKS):
            asked = Asked(settings, job_id, *((progress, row) if look == 0 else ()))
            answer = _look(asked)
            if answer is not None:
                return answer
        return _nowhere(asked)


def _look(asked: Asked) -> Answer | None:
    """None: it is in no table; or it moved just now."""
    if asked.job is not None and asked.job.status is not None:
        return answer_ended(asked)
    if asked.may_be(JobState.DEFERRED) and (deferred := asked.row(Deferred)) is not None:
        return answer_deferred(asked, deferred)
    if asked.may_be(JobState.BLOCKED) and (blocked := asked.row(Blocked)) is not None:
        return answer_blocked(asked, blocked)
    if asked.may_be(JobState.READY) and (ready := asked.row(Ready)) is not None:
        return answer_ready(asked, ready)
    if asked.may_be(JobState.RUNNING) and (claimed := asked.row(Claimed)) is not None:
        return answer_running(asked, claimed)
    return _in_outbox(asked) or _at_broker(asked)


def _in_outbox(asked: Asked) -> Answer | None:
    for row in outgoing_of(asked.settings, [asked.job_id]):
        alias = str(row._state.db)
        asked.task, asked.queue = row.task, row.queue
        alive = [one for one in asked.clusters if asked.is_alive(one)]
        return asked.answer(
            Kind.OUTBOX,
            f"It is in the outbox of the database {alias!r}: its broker does not have it yet.",
            "Clusters relay it within seconds: look at their log if it stays."
            if alive
            else "Clusters relay it, and none is alive: start one by `manage.py stoker run`.",
            database=alias,
            enqueued_at=moment(row.enqueued_at),
        )
    return None


def _at_broker(asked: Asked) -> Answer | None:
    """What a broker outside the database can tell."""
    broker = broker_for(asked.settings)
    if broker.capabilities.transactional:
        return None
    running = answer_running_elsewhere(asked)
    if running is not None or not broker.capabilities.look_up:
        return running
    place = broker.whereabouts([asked.job_id]).get(asked.job_id)
    if place is None:
        return None
    if place == "ready":
        return answer_ready(asked, None)
    name = broker.info()["broker"]
    if place == "running":
        sentence = f"A cluster has it, by the broker {name}, and has not shown it running yet."
        return asked.answer(Kind.HANDED_OUT, sentence)
    sentence = f"The broker {name} keeps it until its moment comes, or that of its next attempt."
    return asked.answer(Kind.AT_BROKER, sentence, broker=name)


def _nowhere(asked: Asked) -> Answer:
    step = Step.objects.using(asked.alias).of_jobs([asked.job_id]).first()
    if step is not None and asked.job is None:
        return answer_step(asked, step)
    broker = broker_for(asked.settings)
    if not broker.capabilities.transactional and not broker.capabilities.look_up:
        name = broker.info()["broker"]
        alive = any(asked.is_alive(one) for one in asked.clusters)
        start = "" if alive else " No cluster is alive: start one by `manage.py stoker run`."
        return asked.answer(
            Kind.AT_BROKER,
            f"It has not ended, and does not run; the broker {name} can't look up single jobs.",
            f"It waits there, unless it was never committed or is not kept any more.{start}",
            broker=name,
        )
    if asked.job is not None:
        return asked.answer(
            Kind.LOST,
            "It has not ended and waits nowhere: no cluster will find it.",
            "`manage.py stoker doctor` says how that is mended.",
        )
    made_at = (asked.job_id.int >> 80) / 1000 if asked.job_id.version == 7 else None
    return asked.answer(
        Kind.UNKNOWN,
        "Nobody knows a job of this id: it was never committed, or is not kept any more.",
        "Look at KEEP_RESULTS, and whether the transaction that enqueued it was rolled back; or it "
        "belongs to another backend of TASKS (--backend).",
        made_at=None if made_at is None else datetime.fromtimestamp(made_at, UTC),
    )
