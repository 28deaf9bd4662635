"""Forms for the arguments of a waiting job and of a dead letter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.http import HttpResponse

from stoker.compat import TaskResultDoesNotExist
from stoker.dashboard.context import DashboardContext
from stoker.dashboard.views import answered, enclosed, rendered, require
from stoker.dead_letters import service as dead_letters
from stoker.models import DeadLetter, Job
from stoker.operations.arguments import edit_arguments
from stoker.operations.dead_letters import REQUEUE
from stoker.operations.operation import Operation
from stoker.operations.waiting_jobs import EDIT
from stoker.store.engines.sessions import explained

METHODS = ("GET", "HEAD", "POST")


@dataclass(frozen=True, slots=True)
class EditForm:
    """A form with the arguments of a job or dead letter, and the operation that saves them."""

    operation: Operation
    row: Job | DeadLetter
    title: str
    button: str
    back: str
    """The URL of the page that leads here."""


def _edit_job(visit: DashboardContext, job_id: UUID) -> HttpResponse:
    """Give a waiting job other arguments."""
    require(visit, "stoker.view_job")
    with explained(visit.database):
        row = Job.objects.using(visit.database).filter(pk=job_id).first()
    if row is None:
        raise TaskResultDoesNotExist(f"There is no job {job_id} in the store (any more).")
    back = visit.at("job", job_id)
    return _answer(visit, EditForm(EDIT, row, "Edit arguments", "Save", back))


def _edit_letter(visit: DashboardContext, letter_id: UUID) -> HttpResponse:
    """Requeue a dead letter with other arguments."""
    require(visit, "stoker.view_deadletter")
    row = dead_letters.letter_of(visit.settings, letter_id)
    back = visit.at("dead-letter", letter_id)
    return _answer(visit, EditForm(REQUEUE, row, "Requeue with other arguments", "Requeue", back))


edit_job: Any = enclosed(_edit_job, METHODS, EDIT.permission)
edit_letter: Any = enclosed(_edit_letter, METHODS, REQUEUE.permission)


def _answer(visit: DashboardContext, editing: EditForm) -> HttpResponse:
    """Show the form, or perform the operation with the arguments in it."""
    done, form = edit_arguments(visit, editing.operation, editing.row)
    if done is not None:
        return answered(visit, editing.operation, done, editing.back)
    return rendered(visit, "stoker/dashboard/edit.html", {"editing": editing, **form})
