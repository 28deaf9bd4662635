"""Forms for the arguments of a waiting job and of a dead letter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.http import HttpResponse

from stoker.compat import TaskResultDoesNotExist
from stoker.dashboard.context import DashboardContext
from stoker.dashboard.views import answered, enclosed, rendered, require
from stoker.dead_letters import service as dead_letters
from stoker.exceptions import PackageError
from stoker.jobs.package import Package, sealer_for
from stoker.models import DeadLetter, Job
from stoker.operations.arguments import Edited, changes_of, runner_of, written_of
from stoker.operations.dead_letters import REQUEUE
from stoker.operations.details import REVEAL
from stoker.operations.operation import Operation
from stoker.operations.waiting_jobs import EDIT
from stoker.store.engines.sessions import explained
from stoker.tasks.arguments import shown_call
from stoker.values.pickles import nothing_unpickled

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
    row = dead_letters.get(letter_id, backend=visit.alias).letter
    back = visit.at("dead-letter", letter_id)
    return _answer(visit, EditForm(REQUEUE, row, "Requeue with other arguments", "Requeue", back))


edit_job: Any = enclosed(_edit_job, METHODS, EDIT.permission)
edit_letter: Any = enclosed(_edit_letter, METHODS, REQUEUE.permission)


def _answer(visit: DashboardContext, editing: EditForm) -> HttpResponse:
    """Show the form, or perform the operation with the arguments in it."""
    row, post = editing.row, visit.request.POST
    runner, package = runner_of(visit.settings, row), _opened(visit, row)
    call = None
    if package is not None:
        call = shown_call(package, visit.settings.redact, reveal=visit.may(REVEAL))
    written = before = written_of(call)
    problems: Sequence[str] = ()
    if visit.request.method == "POST":
        written = {name: post.get(name, "") for name in before}
        old = (package.args, package.kwargs) if package and not visit.may(REVEAL) else None
        edited = Edited.read(runner, **written, before=old)
        problems = edited.problems
        if not problems:
            changes = changes_of(edited, written, before)
            done = editing.operation.attempt(visit.operator, str(row.pk), **changes)
            if done.is_good:
                return answered(visit, editing.operation, done, editing.back)
            problems = [done.sentence]
    context = {
        "editing": editing,
        "written": written,
        "problems": problems,
        "because": post.get("because", ""),
        "signature": Edited.signature(runner.path),
        "hint": runner.hint,
        "is_readable": package is not None,
    }
    return rendered(visit, "stoker/dashboard/edit.html", context)


def _opened(visit: DashboardContext, row: Job | DeadLetter) -> Package | None:
    """Return the package; None = it cannot be opened here."""
    try:
        with nothing_unpickled():
            return sealer_for(visit.settings).open(bytes(row.package))
    except PackageError:
        return None
