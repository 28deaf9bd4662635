"""Jobs: listed along an index, looked at, cancelled, run again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from django.contrib import admin
from django.http import HttpResponseRedirect
from django.http.response import HttpResponseBase

from stoker.compat import TaskResultDoesNotExist
from stoker.ids import parse_job_id
from stoker.models import DeadLetter, Job, UniqueKey
from stoker.models.job_search import COUNTED, STATES, JobFilter, JobSearch, tally
from stoker.progress import JobState, progress_of, progress_of_one
from stoker.why import why

from .job_page import job_context
from .job_verbs import cancel, rerun
from .store_admin import Outcome, StoreAdmin, Verb, reason_of, run_one_of_many
from .unique_keys import key_ids_of
from .visit import Visit
from .words import ago, first_line, shown_moment

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
