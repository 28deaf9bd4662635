"""Jobs in the admin: a list in the order of an index, and a page for each job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.contrib import admin
from django.http import HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.utils import timezone

from stoker.guards.keys import ids_of_unique_text
from stoker.inspect.jobs import STATES, JobFilter, JobPage, JobSearch
from stoker.inspect.timeline import Moment, MomentKind
from stoker.jobs.states import JobState, progress_of
from stoker.models import DeadLetter, Job, Step, Tally, UniqueKey
from stoker.operations import bulk, jobs
from stoker.operations.bulk_walk import BY_NAME
from stoker.operations.details import REVEAL
from stoker.operations.jobs import JobDetails, JobRow, details_of, job_id_of
from stoker.operations.operation import LIMIT, Done
from stoker.operations.waiting_jobs import HOLD, RUN_NOW, changes_in
from stoker.operations.wording import duration, exactly, first_line, since
from stoker.values.ids import parse_job_id
from stoker.values.text import plural
from stoker.why import why

from .base import AdminContext, StoreAdmin

MOST_STEPS = 60
NOT_YET = (Step.State.HELD, Step.State.PENDING)
SINCE = timedelta(days=1)
MOST_TASKS = 500
PAGE = 50
KEY = "key:"


@admin.register(Job)
class JobAdmin(StoreAdmin):
    view_permission = "stoker.view_job"
    plural = "Jobs"
    operations = (*jobs.OPERATIONS, RUN_NOW, HOLD)

    def pages(self) -> Sequence[tuple[str, str, Callable[..., HttpResponseBase]]]:
        return (
            ("together/", "together", self.together),
            ("<stoker_any:object_id>/why/", "why", self.why),
        )

    # -- the list ---------------------------------------------------------------------------------

    def all(self, visit: AdminContext) -> HttpResponseBase:
        asked = {name: visit.request.GET.get(name, "").strip() for name in ("q", "task", "queue")}
        state = visit.request.GET.get("state", "")
        if state not in STATES:
            state = ""
        found = _address_of(visit, asked["q"], asked["task"])
        if found is not None:
            return HttpResponseRedirect(found)
        numbers = jobs.numbers_by_state(visit.database)
        changes = changes_in(visit.settings)
        wanted = JobFilter(state=state, queue=asked["queue"], task=asked["task"], text=asked["q"])
        page, problem = _page(visit, wanted)
        is_first = not visit.request.GET.get("after")
        number = (
            jobs.number_at_broker(visit.settings, wanted) if is_first else jobs.NumberAtBroker()
        )
        context = {
            "rows": [
                _row(visit, row)
                for row in jobs.rows_of(visit.settings, page.jobs, reveal=visit.may(REVEAL))
            ],
            "problem": problem,
            "asked": asked,
            "state": state,
            "states": visit.tabs(("", *STATES), state, numbers),
            **visit.paging(page.next),
            "is_cut": page.is_cut,
            "broker_notice": jobs.broker_notice(visit.settings, wanted, number),
            "operations": [
                one
                for one in self.operations
                if visit.may(one.permission) and one in (*jobs.OPERATIONS, *changes)
            ],
            "together_url": visit.at("job_together"),
        }
        return self.show(visit, "jobs", context)

    # -- one --------------------------------------------------------------------------------------

    def one(self, visit: AdminContext, object_id: str) -> HttpResponseBase:
        details = details_of(visit.settings, job_id_of(object_id), reveal=visit.may(REVEAL))
        again = [jobs.RUN_AGAIN] if details.can_run_again else []
        waits = details.progress.state in (JobState.READY, JobState.DEFERRED, JobState.BLOCKED)
        changes = changes_in(visit.settings) if waits else ()
        waiting = [jobs.CANCEL, *(one for one in changes if one in (RUN_NOW, HOLD))]
        moments = zip(details.life.moments, details.colours, strict=True)
        letter_id = next(
            (one.dead_letter_id for one in details.life.moments if one.dead_letter_id), None
        )
        context = {
            "title": details.life.task or object_id,
            "details": details,
            "state": details.progress.state.value,
            "moments": [_moment(visit, one, colour) for one, colour in moments],
            "failures": list(reversed(details.progress.failures)),
            "steps": _steps(visit, details),
            "letter_url": letter_id and visit.at("deadletter_change", letter_id),
            "buttons": self.buttons(visit, again if details.is_over else waiting, object_id),
            "why_url": "" if details.is_over else visit.at("job_why", object_id),
            **details.call,
        }
        return self.show(visit, "job", context)

    def why(self, visit: AdminContext, object_id: str) -> HttpResponseBase:
        """Return the part of a job's page that explains why the job is not running. A script
        fetches it."""
        visit.require(self.view_permission)
        context = {
            "title": "Why it is not running",
            "answer": why(visit.settings, job_id_of(object_id)),
            "back": self._back(visit, object_id),
        }
        return self.show(visit, "why_part" if "part" in visit.request.GET else "why", context)

    # -- many -------------------------------------------------------------------------------------

    def together(self, visit: AdminContext) -> HttpResponseBase:
        """Perform an operation on the ticked jobs after the user has confirmed it."""
        post = visit.request.POST
        ids = [text for text in post.getlist("ids") if parse_job_id(text)][:LIMIT]
        operation = next((one for one in self.operations if one.word == post.get("verb")), None)
        back = visit.at("job_changelist")
        if operation is None or not ids:
            return self.done(visit, Done("Select jobs and choose an operation.", False), back)
        visit.require(operation.permission)
        if "confirmed" in post:
            if operation.name in BY_NAME:  # the rest of a long one continues in the background
                done = bulk.perform(visit.operator, operation, {"ids": ids})
            else:
                done = operation.attempt_each(visit.operator, ids)
            return self.done(visit, done, back)
        return self.confirm(
            visit,
            operation,
            title=f"{operation.title}: {plural(len(ids), 'job')}",
            question=f"{operation.title}: {plural(len(ids), 'job')}?",
            action=visit.at("job_together"),
            back=back,
            items=ids,
            fields=[("verb", operation.word), *(("ids", one) for one in ids)],
        )


def _page(visit: AdminContext, wanted: JobFilter) -> tuple[JobPage, str]:
    """Return a page of jobs and an error message, which is empty if the requested page exists."""
    search = JobSearch(visit.settings, wanted)
    try:
        return search.page(PAGE, visit.request.GET.get("after") or None), ""
    except ValueError as error:
        return search.page(PAGE), f"{error}: this is the first page."


def _address_of(visit: AdminContext, text: str, task: str) -> str | None:
    """Return the URL of the job or dead letter with this id or unique key; None = there is none."""
    if text.startswith(KEY):
        key_ids = key_ids_of(visit.database, text.removeprefix(KEY).strip(), task)
        keys = UniqueKey.objects.using(visit.database).filter(pk__in=key_ids)
        job_id = keys.order_by("-taken_us").values_list("job_id", flat=True).first()
        return None if job_id is None else visit.at("job_change", job_id)
    wanted = parse_job_id(text)
    if wanted is None:
        return None
    if progress_of(visit.settings, [wanted]):
        return visit.at("job_change", wanted)
    letters = DeadLetter.objects.using(visit.database).filter(pk=wanted)
    return visit.at("deadletter_change", wanted) if letters.exists() else None


def key_ids_of(alias: str, text: str, task: str) -> list[UUID]:
    """Return the ids of the unique keys with this text.

    Without a task, return the ids of shared keys and of keys of recently run tasks.

    Args:
        text: The key as built from the task's template: "feed:7" for ``Unique("feed:{feed}")``.
        task: The dotted path of the task; "" = unknown.
    """
    if task:
        return ids_of_unique_text(text, [task])
    since_second = int((timezone.now() - SINCE).timestamp())
    tallies = Tally.objects.using(alias).between(since_second, timezone.now().timestamp())
    tasks = tallies.order_by().values_list("task", flat=True).distinct()[:MOST_TASKS]
    return ids_of_unique_text(text, tasks)


def _row(visit: AdminContext, row: JobRow) -> dict[str, Any]:
    job = row.job
    return {
        "job": job,
        "state": row.state,
        "call": row.call,
        "url": visit.at("job_change", job.pk),
        "enqueued": exactly(job.enqueued_at),
        "enqueued_ago": since(job.enqueued_at),
        "finished": exactly(job.finished_at),
        "finished_ago": since(job.finished_at),
        "reason": first_line(job.reason),
    }


def _moment(visit: AdminContext, moment: Moment, colour: str) -> dict[str, Any]:
    links = []
    if moment.job_id is not None:
        links.append((f"job {moment.job_id}", visit.at("job_change", moment.job_id)))
    if moment.dead_letter_id is not None:
        links.append(("dead letter", visit.at("deadletter_change", moment.dead_letter_id)))
    took = moment.seconds is not None and moment.kind != MomentKind.WAITED
    return {
        "is": moment,
        "at": exactly(moment.at),
        "until": f"until {exactly(moment.until)}, {since(moment.until)}" if moment.until else "",
        "took": f"took {duration(moment.seconds)}" if took else "",
        "links": links,
        "colour": "wait" if moment.is_now else colour,
    }


def _steps(visit: AdminContext, details: JobDetails) -> list[dict[str, Any]]:
    """Return the first steps of the job's workflow."""
    moments = details.life.moments
    workflow_id = next((one.workflow_id for one in moments if one.workflow_id is not None), None)
    if workflow_id is None:
        return []
    steps = Step.objects.using(visit.database).filter(workflow_id=workflow_id)
    tasks = steps.filter(kind=Step.Kind.TASK).defer("sealed", "value").order_by("pk")[:MOST_STEPS]
    return [
        {
            "is": step,
            "is_this": step.job_id == details.job_id,
            "url": visit.at("job_change", step.job_id) if step.state not in NOT_YET else "",
        }
        for step in tasks
    ]
