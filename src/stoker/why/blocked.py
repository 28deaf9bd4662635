"""Of a job that a guard holds back: which key, who has it, and when it is its turn."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db.models import Q

from stoker.durations import in_words
from stoker.models import Blocked, GuardKey, Job, Need
from stoker.models.clock import MICROSECONDS
from stoker.models.counting import count_of
from stoker.models.places import whereabouts
from stoker.models.statements import with_keys

from .answer import Answer, Kind
from .asked import Asked

HOLDERS = 10
KINDS = {
    Need.Kind.LOCK.value: Kind.LOCK,
    Need.Kind.LIMIT.value: Kind.LIMIT,
    Need.Kind.RATE.value: Kind.RATE,
    Need.Kind.SEQUENCE.value: Kind.SEQUENCE,
}


def answer_blocked(asked: Asked, row: Blocked) -> Answer | None:
    """None: the key went away just now, and the job with it."""
    asked.queue = row.queue
    key = GuardKey.objects.using(asked.alias).filter(pk=row.key_id).first()
    if key is None:
        return None
    line = Blocked.objects.using(asked.alias).filter(key_id=key.pk, queue=row.queue)
    before = count_of(line.filter(Q(rank__lt=row.rank) | Q(rank=row.rank, pk__lt=row.pk))).number
    facts: dict[str, Any] = {"key": key.name, "before": before, "places": key.room}
    if key.kind == Need.Kind.RATE:
        return _answer_rate(asked, key, facts)
    if key.kind == Need.Kind.SEQUENCE:
        return _answer_sequence(asked, key, facts)
    return _answer_place(asked, key, facts)


def _answer_place(asked: Asked, key: GuardKey, facts: dict[str, Any]) -> Answer:
    """Of a lock or limit."""
    holders = _shown(asked, Need.objects.using(asked.alias).holders([key.pk])[key.pk])
    room = "one may" if key.room == 1 else f"{key.room} may"
    turn = "It is next." if not facts["before"] else f"{facts['before']:,} are before it."
    sentence = f"The {key.kind} {key.name!r}, under which {room} run at a time, {_by(holders)}"
    return asked.answer(
        KINDS[key.kind],
        f"{sentence}. {turn}",
        "" if holders else "If it stays: upkeep of a cluster calls it; is one alive?",
        holders=holders,
        **facts,
    )


def _answer_rate(asked: Asked, key: GuardKey, facts: dict[str, Any]) -> Answer:
    seconds = None if key.due_us is None else max(0.0, asked.seconds_until(key.due_us))
    period_seconds = key.period_us / MICROSECONDS
    when = "soon" if seconds is None else f"in {in_words(seconds)}"
    turn = "It is next." if not facts["before"] else f"{facts['before']:,} are before it."
    return asked.answer(
        Kind.RATE,
        f"The rate {key.name!r} lets {key.room:,} start in {in_words(period_seconds)}; the next "
        f"may start {when}. {turn}",
        period_seconds=period_seconds,
        next_start_seconds=seconds,
        **facts,
    )


def _answer_sequence(asked: Asked, key: GuardKey, facts: dict[str, Any]) -> Answer:
    """A sequence is held by the job that runs; by one that has failed, until somebody sees to it;
    else by the oldest that has not ended."""
    needs = Need.objects.using(asked.alias)
    holding = needs.holders([key.pk])[key.pk]
    first = None if holding else needs.firsts([key.pk])[key.pk]
    holders = _shown(asked, holding or ({first} if first not in (None, asked.job_id) else set()))
    halted_by = next((one["job_id"] for one in holders if one["state"] == Job.Status.FAILED), None)
    if halted_by is not None:
        sentence = f"The sequence {key.name!r} is halted: job {halted_by}, before it, has failed."
        advice = (
            "It goes on when the dead letter of that job is requeued and succeeds, or is discarded."
        )
    else:
        sentence = f"In the sequence {key.name!r} a job before it has not ended"
        sentence += "".join(f": {one['task']} {one['job_id']}" for one in holders[:1]) + "."
        advice = ""
    return asked.answer(
        Kind.SEQUENCE, sentence, advice, holders=holders, halted_by=halted_by, **facts
    )


def _shown(asked: Asked, job_ids: set[Any]) -> list[dict[str, Any]]:
    """Some of these jobs, each with its task and where it is."""
    ids: list[UUID] = sorted(job_ids)[:HOLDERS]
    jobs = Job.objects.using(asked.alias)
    known = {row[0]: row[1:] for row in with_keys(jobs, ids).values_list("pk", "task", "status")}
    places = whereabouts(asked.alias, ids)
    shown = []
    for job_id in ids:
        task, status = known.get(job_id, ("", None))
        state = status or places.get(job_id, "").upper() or None
        shown.append({"job_id": str(job_id), "task": task, "state": state})
    return shown


def _by(holders: list[dict[str, Any]]) -> str:
    if not holders:
        return "is free: its turn comes in a moment"
    named = ", ".join(f"{one['task'] or 'job'} {one['job_id']}" for one in holders[:3])
    return f"is held by {named}" + (" and others" if len(holders) > 3 else "")
