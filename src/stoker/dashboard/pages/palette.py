"""The command palette: pages, queues, tasks and schedules by a part of the name, and jobs, dead
letters, schedules and workflows by id."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse, JsonResponse

from stoker.brokers.outage import do_without_broker
from stoker.dashboard import figures
from stoker.dashboard.context import DashboardContext
from stoker.dashboard.spans import span_of
from stoker.dashboard.views import NO_ANSWER, SILENT, entered, misconfigured, unavailable
from stoker.exceptions import ConfigurationError, StokerError
from stoker.inspect.queue_depths import pauses
from stoker.jobs.states import full_progress_of
from stoker.operations.jobs import others_of_id
from stoker.schedules import service as schedules
from stoker.store.engines.sessions import explained
from stoker.tasks.registry import tasks_of_apps
from stoker.values.ids import parse_job_id
from stoker.values.text import shown_text

MOST_OF_A_KIND = 8
LONGEST_QUERY = 200


class PaletteEntry(NamedTuple):
    """A link that the palette offers: to a page, or to one job, task, queue or other thing."""

    kind: str
    title: str
    address: str


@login_not_required
def palette(request: HttpRequest) -> HttpResponse:
    """Return what the text ``q`` finds, as JSON: entries[] {kind, title, address}."""
    try:
        visit = entered(request)
        if refusal := visit.refusal:
            return HttpResponse(refusal, status=403, content_type="text/plain")
        text = request.GET.get("q", "").strip()[:LONGEST_QUERY]
        with explained(visit.database), do_without_broker():
            found = [entry._asdict() for entry in _entries(visit, text)]
    except ConfigurationError as error:
        return misconfigured(request, error)
    except (*NO_ANSWER, StokerError):
        return unavailable(SILENT)
    return JsonResponse({"entries": found}, headers={"Cache-Control": "no-store"})


def _entries(visit: DashboardContext, text: str) -> Iterator[PaletteEntry]:
    yield from _of_id(visit, text)
    titles = {section["title"]: section["address"] for section in visit.sections}
    for title in best(titles, text) if text else titles:
        yield PaletteEntry("page", title, titles[title])
    if not text or "\x00" in text:
        return
    span = span_of(visit, "day")
    if visit.may("stoker.view_job"):
        seen_tasks, seen_queues = figures.names(visit, span)
        queues = {*visit.settings.queues, *pauses(visit.settings), *seen_queues}
        for name in best(queues, text):
            yield PaletteEntry("queue", shown_text(name), visit.at("queue", name=name))
        for name in best({*tasks_of_apps(), *seen_tasks}, text):
            yield PaletteEntry("task", shown_text(name), visit.at("task", name=name))
    if visit.may("stoker.view_schedule"):
        rows = schedules.find(backend=visit.alias).filter(name__icontains=text)
        known = {name: pk for pk, name in rows.values_list("pk", "name")[:1000]}
        for name in best(known, text):
            yield PaletteEntry("schedule", shown_text(name), visit.at("schedule", known[name]))


def _of_id(visit: DashboardContext, text: str) -> Iterator[PaletteEntry]:
    """Yield the things with this id that the user may see."""
    wanted = parse_job_id(text)
    if wanted is None:
        return
    if visit.may("stoker.view_job"):
        for progress in full_progress_of(visit.settings, [wanted]).values():
            task = "" if progress.job is None else shown_text(progress.job.task)
            yield PaletteEntry("job", f"{wanted} {task}".rstrip(), visit.at("job", wanted))
    letter_id, workflow_id = others_of_id(visit.settings, text)
    if letter_id is not None and visit.may("stoker.view_deadletter"):
        yield PaletteEntry("dead letter", str(letter_id), visit.at("dead-letter", letter_id))
    if workflow_id is not None and visit.may("stoker.view_workflow"):
        yield PaletteEntry("workflow", str(workflow_id), visit.at("workflow", workflow_id))
    if visit.may("stoker.view_schedule"):
        rows = schedules.find(backend=visit.alias).filter(pk=wanted)
        for name in rows.values_list("name", flat=True):
            yield PaletteEntry("schedule", shown_text(name), visit.at("schedule", wanted))


def best(names: Iterable[str], text: str) -> list[str]:
    """Return the names that contain the text, best match first.

    Names that begin with the text come first, then names with a word that begins with it. Among
    equal matches, shorter names come first.
    """
    wanted = text.lower()

    def rank(name: str) -> tuple[int, int, str]:
        lower = name.lower()  # may be longer
        at = lower.find(wanted)
        is_word = at == 0 or not lower[at - 1].isalnum()
        return (0 if at == 0 else 1 if is_word else 2), len(name), name

    return sorted((name for name in names if wanted in name.lower()), key=rank)[:MOST_OF_A_KIND]
