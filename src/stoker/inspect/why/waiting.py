"""Explain why a job waits for another step, a guard, or its start time."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db.models import OuterRef, Subquery

from stoker.exceptions import PackageError
from stoker.guards.sequences import halted
from stoker.jobs.change import HELD_US
from stoker.jobs.retries import OTHER_KEY_WAIT, UNKNOWN_TASK_WAIT
from stoker.jobs.states import JobState
from stoker.models import (
    Attempt,
    Blocked,
    Deferred,
    GuardKey,
    Job,
    Need,
    Step,
    Wait,
    Workflow,
)
from stoker.models.step import GROUPS, OPEN
from stoker.store.places import stored_states
from stoker.store.statements import with_keys
from stoker.store.written import MICROSECONDS
from stoker.values.durations import in_words
from stoker.values.text import plural

from .answer import Answer, Asked, Kind, at
from .ready import answer_ready, number_before

SHOWN = 10
LEAVES = 200
"""Maximum number of earlier steps to read."""


def answer_step(asked: Asked, step: Step) -> Answer:
    asked.task = asked.task or step.label
    workflow = Workflow.objects.using(asked.alias).filter(pk=step.workflow_id).first()
    facts: dict[str, Any] = {
        "workflow": str(step.workflow_id),
        "workflow_state": workflow.state if workflow is not None else None,
    }
    name = f"the workflow {str(workflow) if workflow is not None else step.workflow_id}"
    if workflow is None or workflow.state != Workflow.State.RUNNING:
        state = workflow.state.lower() if workflow is not None else "gone"
        return asked.answer(
            Kind.WORKFLOW,
            f"It is a step of {name}, which is {state}: it will not run.",
            f"{asked.command('workflows retry', step.workflow_id)} retries a failed workflow.",
            waits_for=[],
            **facts,
        )
    waits_for = _steps_before(asked, step)
    named = ", ".join(f"{one['task']} ({one['state'].lower()})" for one in waits_for[:3])
    more = " and others" if len(waits_for) > 3 else ""
    return asked.answer(
        Kind.WORKFLOW,
        f"It is a step of {name}, and starts after {named or 'other steps'}{more}.",
        waits_for=waits_for,
        **facts,
    )


def _steps_before(asked: Asked, step: Step) -> list[dict[str, Any]]:
    """Return the unfinished tasks that must end first: those below the nearest earlier step that
    has not ended."""
    steps = Step.objects.using(asked.alias).defer("sealed", "value")
    node = step
    while node.parent_id is not None:
        parent = steps.get(pk=node.parent_id)
        under_way = steps.below([parent.pk]).filter(state__in=OPEN)
        if parent.kind not in GROUPS:
            under_way = under_way.filter(position__lt=node.position)
        elif parent.has_more and node.state == Step.State.PENDING:
            under_way = under_way.exclude(state=Step.State.PENDING)
        else:
            under_way = under_way.none()
        tasks = _tasks_of(asked, list(under_way.exclude(pk=node.pk)[:LEAVES]))
        if tasks:
            return tasks[:SHOWN]
        node = parent
    return []


def _tasks_of(asked: Asked, found: list[Step]) -> list[dict[str, Any]]:
    """Return the unfinished tasks among these steps and below them."""
    steps = Step.objects.using(asked.alias).defer("sealed", "value")
    tasks: list[Step] = []
    while found and len(tasks) < SHOWN:
        tasks += [one for one in found if one.kind == Step.Kind.TASK and not one.has_added]
        held = [one.pk for one in found if one.kind != Step.Kind.TASK or one.has_added]
        found = list(steps.below(held).filter(state__in=OPEN)[:LEAVES]) if held else []
    tasks.sort(key=lambda one: one.state == Step.State.PENDING)
    return [
        {
            "task": one.label,
            "job_id": None if one.job_id is None else str(one.job_id),
            "state": one.state,
        }
        for one in tasks
    ]


HOLDERS = 10


def answer_blocked(asked: Asked, row: Blocked) -> Answer | None:
    """Return the answer, or None if the key and the job's row have just been removed."""
    asked.queue = row.queue
    key = row.key
    if key is None:
        return None
    line = Blocked.objects.using(asked.alias).filter(key_id=key.pk)
    before = number_before(line, row).number
    facts: dict[str, Any] = {"key": key.name, "before": before, "places": key.room}
    if key.kind == Need.Kind.RATE:
        return _answer_rate(asked, key, facts)
    if key.kind == Need.Kind.SEQUENCE:
        return _answer_sequence(asked, key, facts)
    return _answer_place(asked, key, facts)


def _named(key: GuardKey) -> str:
    """Return the kind of a key and its text: ``lock 'customer ann'``. The name of a key begins with
    its kind, and that of a rate ends with its period."""
    text = key.name.removeprefix(f"{key.kind} ")
    if key.kind == Need.Kind.RATE:
        text = text.removesuffix(f" per {key.period_us / MICROSECONDS:g} s")
    return f"{key.kind} {text!r}"


def _answer_place(asked: Asked, key: GuardKey, facts: dict[str, Any]) -> Answer:
    """Answer for a lock or a limit."""
    tasks = Job.objects.filter(pk=OuterRef("job_id")).values("task")
    needs = Need.objects.using(asked.alias).filter(holds=key.pk).order_by("fence")
    holders = [
        {"job_id": str(job_id), "task": task or "", "state": JobState.RUNNING.value}
        for job_id, task in needs.values_list("job_id", Subquery(tasks))[:HOLDERS]
    ]
    turn = _turn(facts["before"])
    if not key.room:
        sentence = f"The {_named(key)} was set to 0: no job may run until set_limit raises it."
        advice = "Raise it with `stoker.set_limit`, or on the page of the guard in the dashboard."
        return asked.answer(Kind(key.kind), f"{sentence} {turn}", advice, holders=holders, **facts)
    room = "one may" if key.room == 1 else f"{key.room} may"
    # A cluster may have claimed several jobs of a lock. It runs them one after another.
    following = len(holders) - 1 if key.kind == Need.Kind.LOCK and key.room == 1 else 0
    by = f"{_by(holders[:1])}, and others follow it" if following > 0 else _by(holders)
    sentence = f"The {_named(key)}, under which {room} run at a time, {by}"
    return asked.answer(
        Kind(key.kind),
        f"{sentence}. {turn}",
        "" if holders else "Upkeep makes it ready. If it stays blocked, check that a cluster runs.",
        holders=holders,
        **facts,
    )


def _answer_rate(asked: Asked, key: GuardKey, facts: dict[str, Any]) -> Answer:
    seconds = None if key.due_us is None else max(0.0, asked.seconds_until(key.due_us))
    period_seconds = key.period_us / MICROSECONDS
    when = "soon" if seconds is None else f"in {in_words(seconds)}"
    turn = _turn(facts["before"])
    return asked.answer(
        Kind.RATE,
        f"The {_named(key)} lets {key.room:,} start in {in_words(period_seconds)}; the next "
        f"may start {when}. {turn}",
        period_seconds=period_seconds,
        next_start_seconds=seconds,
        **facts,
    )


def _answer_sequence(asked: Asked, key: GuardKey, facts: dict[str, Any]) -> Answer:
    """Answer for a sequence. It is held by the running job, by a failed job that halts it, or by
    the oldest unfinished job."""
    needs = Need.objects.using(asked.alias)
    holding = needs.holders([key.pk])[key.pk]
    first = None if holding else needs.firsts([key.pk])[key.pk]
    holders = _shown(asked, holding or ({first} if first not in (None, asked.job_id) else set()))
    failure = halted(asked.alias, [key.pk]).get(key.pk)
    halted_by = None if failure is None else str(failure[0])
    if halted_by is not None:
        sentence = f"The {_named(key)} is halted because an earlier job, {halted_by}, has failed."
        advice = (
            "It continues when the dead letter of that job is requeued and succeeds, or is "
            "discarded."
        )
    else:
        sentence = f"In the {_named(key)} an earlier job has not ended"
        sentence += "".join(f": {one['task']} {one['job_id']}" for one in holders[:1]) + "."
        advice = ""
    return asked.answer(
        Kind.SEQUENCE, sentence, advice, holders=holders, halted_by=halted_by, **facts
    )


def _turn(before: int) -> str:
    return f"{plural(before, 'job is', 'jobs are')} before it." if before else "It is next."


def _shown(asked: Asked, job_ids: set[Any]) -> list[dict[str, Any]]:
    """Return the id, task and state of the first few of the given jobs, by id."""
    ids: list[UUID] = sorted(job_ids)[:HOLDERS]
    jobs = Job.objects.using(asked.alias)
    known = {row[0]: row[1:] for row in with_keys(jobs, ids).values_list("pk", "task", "status")}
    places = stored_states(asked.alias, ids)
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


LATE_SECONDS = 5.0
"""A deferred job that is overdue by more than this is explained like a ready job."""


def answer_deferred(asked: Asked, row: Deferred) -> Answer:
    asked.queue = row.queue
    seconds = asked.seconds_until(row.due_us)
    if seconds < -LATE_SECONDS:
        return answer_ready(asked, None)
    if row.due_us >= HELD_US:
        return asked.answer(
            Kind.RUN_AFTER,
            "An operator holds it: it does not start until it is run or rescheduled.",
            "Run it now, or give it another start.",
            due_at=at(row.due_us),
            seconds=max(0.0, seconds),
            is_held=True,
        )
    waits = _waits_of(asked, row)
    put_back = next((one for one in waits if one.kind == Wait.Kind.PUT_BACK), None)
    if row.attempts and put_back is None:
        return answer_retry(asked, row.due_us, row.attempts, asked.last_failure())
    soon, facts = asked.soon(row.due_us)
    job = asked.job
    if job is not None and job.run_after is not None and at(row.due_us) <= job.run_after:
        sentence = f"It was enqueued to run later: it becomes ready {soon}."
        return asked.answer(Kind.RUN_AFTER, sentence, is_held=False, **facts)
    awaited = "" if put_back is None else put_back.name
    is_unreadable = isinstance(asked.package, PackageError)
    if is_unreadable and awaited not in (OTHER_KEY_WAIT, UNKNOWN_TASK_WAIT):
        return answer_ready(asked, None)
    if asked.unknown_task is not None and awaited != OTHER_KEY_WAIT:
        return asked.answer(
            Kind.UNKNOWN_TASK,
            "The clusters that claimed it did not know its task, nor does this process; it is "
            f"retried {soon}.",
            "Deploy the code that has the task, or cancel the job. After "
            "UNKNOWN_TASK_GRACE_SECONDS it becomes a dead letter.",
            error=str(asked.unknown_task),
            **facts,
        )
    needs = Need.objects.using(asked.alias).of_jobs({asked.job_id: row.guards})[asked.job_id]
    busy = [one.name for one in needs if one.on_busy == "retry"]
    if put_back is not None:
        later = {one.name for one in waits[: waits.index(put_back)]}
        busy = [name for name in busy if name in later]
    if busy:
        sentence = f"{' or '.join(busy)} was taken when its turn came; it is checked again {soon}."
        return asked.answer(Kind.PUT_BACK, sentence, **facts)
    return _answer_put_back(asked, put_back, soon, facts)


def _waits_of(asked: Asked, row: Deferred) -> list[Wait]:
    """Return the waits since the last failed attempt, the one that began last first."""
    waits = Wait.objects.using(asked.alias).filter(job_id=asked.job_id, attempts=row.attempts)
    return list(waits.order_by("-began_us"))


def answer_retry(asked: Asked, due_us: int, attempts: int, last: Attempt | None) -> Answer:
    """Answer for a job that waits for a retry, after this number of attempts."""
    soon, facts = asked.soon(due_us)
    error = "" if last is None else f"{last.exception_class}: {last.message.partition(chr(10))[0]}"
    package = asked.package
    most = None
    if package is not None and not isinstance(package, PackageError):
        most = package.options.max_attempts
    of = f" of {most}" if most else ""
    told = f" ({error})" if error else ""
    return asked.answer(
        Kind.RETRY,
        f"Attempt {attempts}{of} failed{told}; it is retried {soon}.",
        attempts=attempts,
        max_attempts=most,
        error=error,
        **facts,
    )


def _answer_put_back(
    asked: Asked, put_back: Wait | None, soon: str, facts: dict[str, Any]
) -> Answer:
    if put_back is not None and not put_back.name:
        return asked.answer(
            Kind.PUT_BACK,
            f"It snoozed, or was released without counting the attempt; it runs again {soon}.",
            "See the clusters' log for the reason.",
            **facts,
        )
    if put_back is not None and put_back.name == OTHER_KEY_WAIT:
        return asked.answer(
            Kind.PUT_BACK,
            "A cluster could not verify its signature, and another cluster has another SECRET_KEY; "
            f"it is retried {soon}.",
            "Put each of the keys into SECRET_KEY_FALLBACKS of all clusters, and restart them. "
            "After UNKNOWN_TASK_GRACE_SECONDS it becomes a dead letter.",
            **facts,
        )
    return asked.answer(
        Kind.PUT_BACK,
        f"It was released without having run; it is retried {soon}.",
        "If this repeats, see the clusters' log for the reason. Perhaps one of them runs older "
        "code, which does not have the task.",
        **facts,
    )
