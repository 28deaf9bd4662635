"""Jobs: listed along an index, looked at, cancelled, run again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

from django.contrib import admin
from django.http import HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.utils import timezone

from stoker.compat import TaskResultDoesNotExist
from stoker.dead_letters.requeueing import run_again
from stoker.exceptions import PackageError
from stoker.guards.keys import ids_of_unique_text
from stoker.inspect.jobs import COUNTED, STATES, JobFilter, JobSearch, tally
from stoker.inspect.timeline import Moment, MomentKind, Timeline, timeline
from stoker.jobs.package import Package
from stoker.jobs.results import fetch, result_of
from stoker.jobs.states import JobState, Progress, package_of, progress_of, progress_of_one
from stoker.models import DeadLetter, Job, Step, Tally, UniqueKey
from stoker.values.ids import parse_job_id
from stoker.why import why

from .base import (
    Outcome,
    StoreAdmin,
    Verb,
    Visit,
    ago,
    duration,
    first_line,
    reason_of,
    run_one_of_many,
    shown,
    shown_moment,
)

MOST_STEPS = 60
NOT_YET = (Step.State.HELD, Step.State.PENDING)
GOOD = (MomentKind.SUCCEEDED, MomentKind.RESOLVED)
BAD = (
    MomentKind.ATTEMPT_FAILED,
    MomentKind.ATTEMPT_TIMED_OUT,
    MomentKind.ATTEMPT_CRASHED,
    MomentKind.FAILED,
    MomentKind.DEAD_LETTERED,
)


def job_context(visit: Visit, job_id: UUID, progress: Progress) -> dict[str, Any]:
    """For the template."""
    job, package = progress.job, package_of(visit.settings, progress.job)
    life = timeline(visit.settings, job_id, progress)
    return {
        "title": life.task or str(job_id),
        "job_id": job_id,
        "job": job,
        "state": progress.state.value,
        "facts": _facts(progress, package),
        "moments": [_moment(visit, one) for one in life.moments],
        "args": None if package is None else [shown(value) for value in package.args],
        "kwargs": {} if package is None else {k: shown(v) for k, v in package.kwargs.items()},
        "value": _value(visit, job_id, progress),
        "failures": list(reversed(progress.failures)),
        "steps": _steps(visit, life.moments, job_id),
        "letter_url": _letter_url(visit, life.moments),
        "has_letter": _has_letter(life),
    }


def _facts(progress: Progress, package: Package | None) -> list[tuple[str, str]]:
    job = progress.job
    if job is None:
        return [("kept by", "its broker alone, until it has ended")]
    most = f" of at most {package.options.max_attempts}" if package is not None else ""
    facts = [
        ("queue", job.queue),
        ("priority", str(job.priority)),
        ("enqueued", f"{shown_moment(job.enqueued_at)}, {ago(job.enqueued_at)}"),
        ("attempts", f"{progress.attempts}{most}"),
    ]
    if job.run_after is not None:
        facts.append(("not before", shown_moment(job.run_after)))
    if job.finished_at is not None:
        facts.append(("finished", f"{shown_moment(job.finished_at)}, {ago(job.finished_at)}"))
    if job.worker_id:
        facts.append(("worker", job.worker_id))
    if job.reason:
        facts.append(("reason", job.reason))
    if package is not None and package.options.identity:
        facts.append(("unique key", package.options.identity.rpartition(" ")[0]))
    return facts


def _moment(visit: Visit, moment: Moment) -> dict[str, Any]:
    colour = "good" if moment.kind in GOOD else "bad" if moment.kind in BAD else ""
    links = []
    if moment.job_id is not None:
        links.append((f"job {moment.job_id}", visit.at("job_change", moment.job_id)))
    if moment.dead_letter_id is not None:
        links.append(("dead letter", visit.at("deadletter_change", moment.dead_letter_id)))
    return {
        "title": moment.kind.label,
        "number": moment.number,
        "at": shown_moment(moment.at) if moment.at else "",
        "is_now": moment.is_now,
        "until": f"until {shown_moment(moment.until)}, {ago(moment.until)}" if moment.until else "",
        "took": f"took {duration(moment.seconds)}" if moment.seconds is not None else "",
        "text": moment.text,
        "by": moment.by,
        "worker": moment.worker_id,
        "links": links,
        "colour": "wait" if moment.is_now else colour,
    }


def _value(visit: Visit, job_id: UUID, progress: Progress) -> str | None:
    """What it returned; None = nothing was kept."""
    if progress.job is None or progress.job.value is None:
        return None
    try:
        return shown(result_of(visit.settings, job_id, progress).return_value)
    except (ValueError, PackageError) as error:
        return f"cannot be read here: {error}"


def _steps(visit: Visit, moments: Any, job_id: UUID) -> list[dict[str, Any]]:
    """The first steps of its workflow."""
    workflow_id = next((one.workflow_id for one in moments if one.workflow_id is not None), None)
    if workflow_id is None:
        return []
    steps = Step.objects.using(visit.database).filter(workflow_id=workflow_id)
    tasks = steps.filter(kind=Step.Kind.TASK).defer("sealed", "value")
    rows = list(tasks.order_by("pk")[:MOST_STEPS])
    return [
        {
            "label": row.label,
            "role": row.role,
            "state": row.state,
            "is_this": row.job_id == job_id,
            "url": visit.at("job_change", row.job_id) if row.state not in NOT_YET else "",
        }
        for row in rows
    ]


def _has_letter(life: Timeline) -> bool:
    """Whether its dead letter is to be seen to still."""
    kinds = {one.kind for one in life.moments}
    closed = {MomentKind.RESOLVED, MomentKind.DISCARDED}
    return MomentKind.DEAD_LETTERED in kinds and not kinds & closed


def _letter_url(visit: Visit, moments: Any) -> str:
    letter_id = next((one.dead_letter_id for one in moments if one.dead_letter_id), None)
    return "" if letter_id is None else visit.at("deadletter_change", letter_id)


def cancel(visit: Visit, object_id: str, because: str) -> Outcome:
    """Withdraw it where it waits, or have it ended where it runs."""
    reason = f"cancelled by {visit.by}" + (f": {because}" if because else "")
    result = fetch(visit.settings, object_id)
    if not result.cancel(reason[:255]):
        return Outcome(f"The job had ended already: {result.state}.", is_good=False)
    if result.state == JobState.RUNNING:
        return Outcome("The job was told to end. That takes a moment.")
    return Outcome("The job is cancelled.")


def rerun(visit: Visit, object_id: str, because: str) -> Outcome:
    """A new job with the same arguments."""
    job_id = parse_job_id(object_id)
    if job_id is None:
        raise TaskResultDoesNotExist(f"{object_id!r} is no id of a job.")
    again = run_again(visit.settings, job_id)
    to = visit.at("job_change", again.result.id) if again.result is not None else ""
    if again.because:
        return Outcome(again.because, False, to)
    return Outcome("Enqueued again with the same arguments: this is the new job.", to=to)


SINCE = timedelta(days=1)
MOST_TASKS = 500


def key_ids_of(alias: str, text: str, task: str) -> list[UUID]:
    """The keys that this text may be: of everybody, and of each task of which something was
    recorded lately.

    Args:
        text: as it comes out of the task's own, as "feed:7" of ``Unique("feed:{feed}")``.
        task: its dotted path, where it is known.
    """
    if task:
        return ids_of_unique_text(text, [task])
    since = int((timezone.now() - SINCE).timestamp())
    tallies = Tally.objects.using(alias).between(since, timezone.now().timestamp())
    tasks = tallies.order_by().values_list("task", flat=True).distinct()[:MOST_TASKS]
    return ids_of_unique_text(text, tasks)


PAGE = 50
KEY = "key:"
MOST_AT_ONCE = 200


@admin.register(Job)
class JobAdmin(StoreAdmin):
    view_permission = "stoker.view_job"
    plural = "Jobs"
    verbs = (
        Verb(
            "cancel",
            "Cancel",
            "stoker.cancel_job",
            cancel,
            asks="Cancel this job? If it runs, it is told to end.",
            is_grave=True,
        ),
        Verb("again", "Run again", "stoker.add_job", rerun),
    )

    def pages(self) -> Sequence[tuple[str, str, Callable[..., HttpResponseBase]]]:
        return (
            ("together/", "together", self.together),
            ("<path:object_id>/why/", "why", self.why),
        )

    # -- the list ---------------------------------------------------------------------------------

    def all(self, visit: Visit) -> HttpResponseBase:
        asked = {name: visit.request.GET.get(name, "").strip() for name in ("q", "task", "queue")}
        state = visit.request.GET.get("state", "")
        if state not in STATES:
            state = ""
        found = self._by_id(visit, asked["q"], asked["task"])
        if found is not None:
            return HttpResponseRedirect(found)
        counts = tally(visit.database)
        page, problem = self._page(visit, asked, state)
        context = {
            "rows": self._rows(visit, page.jobs, state),
            "problem": problem,
            "asked": asked,
            "state": state,
            "states": _states(visit, state, counts),
            "next": visit.here(after=page.next) if page.next else "",
            "first": visit.here(after="") if visit.request.GET.get("after") else "",
            "is_cut": page.is_cut,
            "verbs": [
                {"name": one.name, "label": one.label}
                for one in self.verbs
                if visit.may(one.permission)
            ],
            "together_url": visit.at("job_together"),
        }
        return self.show(visit, "jobs", context)

    def _page(self, visit: Visit, asked: dict[str, str], state: str) -> tuple[Any, str]:
        after = visit.request.GET.get("after") or None
        wanted = JobFilter(state, asked["queue"], asked["task"], asked["q"])
        search = JobSearch(visit.database, wanted)
        try:
            return search.page(PAGE, after), ""
        except ValueError as error:
            return search.page(PAGE), f"{error}: this is the first page."

    def _by_id(self, visit: Visit, text: str, task: str) -> str | None:
        """Where the one thing is that was asked for by its id or unique key."""
        if text.startswith(KEY):
            job_id = _of_key(visit.database, text.removeprefix(KEY).strip(), task)
            return None if job_id is None else visit.at("job_change", job_id)
        wanted = parse_job_id(text)
        if wanted is None:
            return None
        if progress_of(visit.settings, [wanted]):
            return visit.at("job_change", wanted)
        letters = DeadLetter.objects.using(visit.database).filter(pk=wanted)
        return visit.at("deadletter_change", wanted) if letters.exists() else None

    def _rows(self, visit: Visit, jobs: Sequence[Job], state: str) -> list[dict[str, Any]]:
        unended = [job.pk for job in jobs if job.status is None] if not state else []
        progress = progress_of(visit.settings, unended) if unended else {}
        return [
            {
                "job": job,
                "url": visit.at("job_change", job.pk),
                "state": state or job.status or _state_of(progress.get(job.pk)),
                "enqueued": shown_moment(job.enqueued_at),
                "enqueued_ago": ago(job.enqueued_at),
                "finished": shown_moment(job.finished_at),
                "finished_ago": ago(job.finished_at),
                "reason": first_line(job.reason),
            }
            for job in jobs
        ]

    # -- one --------------------------------------------------------------------------------------

    def one(self, visit: Visit, object_id: str) -> HttpResponseBase:
        job_id = parse_job_id(object_id)
        if job_id is None:
            raise TaskResultDoesNotExist(f"{object_id!r} is no id of a job.")
        progress = progress_of_one(visit.settings, job_id)
        is_over = progress.job is not None and progress.job.status is not None
        context = job_context(visit, job_id, progress)
        names = [] if context["has_letter"] else ["again"]
        context |= {
            "buttons": self.buttons(visit, names if is_over else ["cancel"], object_id),
            "why_url": "" if is_over else visit.at("job_why", job_id),
        }
        return self.show(visit, "job", context)

    def why(self, visit: Visit, object_id: str) -> HttpResponseBase:
        """Why it is not running: a part of its page, which is asked for once that is shown."""
        visit.require(self.view_permission)
        job_id = parse_job_id(object_id)
        if job_id is None:
            raise TaskResultDoesNotExist(f"{object_id!r} is no id of a job.")
        answer = why(visit.settings, job_id)
        is_part = "part" in visit.request.GET
        context = {
            "title": "Why it is not running",
            "answer": answer,
            "back": self._back(visit, object_id),
        }
        return self.show(visit, "why_part" if is_part else "why", context)

    # -- many -------------------------------------------------------------------------------------

    def together(self, visit: Visit) -> HttpResponseBase:
        """What is done about the jobs that were ticked, once that is confirmed."""
        post = visit.request.POST
        ids = [text for text in post.getlist("ids") if parse_job_id(text)][:MOST_AT_ONCE]
        verb = next((one for one in self.verbs if one.name == post.get("verb")), None)
        back = visit.at("job_changelist")
        if verb is None or not ids:
            return self.done(visit, Outcome("Tick jobs, and choose what to do.", False), back)
        visit.require(verb.permission)
        if "confirmed" not in post:
            context = {
                "title": f"{verb.label}: {len(ids):,} jobs",
                "question": f"{verb.label}: these {len(ids):,} jobs?",
                "items": ids,
                "label": verb.label,
                "is_grave": verb.is_grave,
                "action": visit.at("job_together"),
                "back": back,
                "fields": [("verb", verb.name), *(("ids", one) for one in ids)],
            }
            return self.show(visit, "confirm", context)
        because = reason_of(visit)
        outcomes = [run_one_of_many(partial(verb.run, visit, one, because)) for one in ids]
        others = [one for one in outcomes if not one.is_good]
        sentence = f"{verb.label}: {len(outcomes) - len(others):,} of {len(outcomes):,} jobs."
        if others:
            sentence += f" Not: {others[0].sentence}"
        return self.done(visit, Outcome(sentence, is_good=not others), back)


def _of_key(alias: str, text: str, task: str) -> Any:
    """The last job of a unique key, by the text of the key."""
    keys = UniqueKey.objects.using(alias).filter(pk__in=key_ids_of(alias, text, task))
    return keys.order_by("-taken_us").values_list("job_id", flat=True).first()


def _state_of(progress: Any) -> str:
    return JobState.READY.value if progress is None else progress.state.value


def _states(visit: Visit, state: str, counts: dict[str, int]) -> list[dict[str, Any]]:
    return [
        {
            "name": name.lower() or "all",
            "url": visit.here(state=name, after=""),
            "is_chosen": name == state,
            "count": _counted(counts.get(name)) if name else "",
        }
        for name in ("", *STATES)
    ]


def _counted(number: int | None) -> str:
    if number is None:
        return ""
    return f"{COUNTED:,}+" if number > COUNTED else f"{number:,}"
