"""Django Q's pages in the admin: successful and failed tasks, schedules, and queued tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import wraps
from typing import Any

from django.contrib import admin, messages
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from django.urls import URLPattern
from django.utils.translation import ngettext

from stoker.dead_letters import service as dead_letters
from stoker.exceptions import DeadLetterNotFound, StokerError
from stoker.operations.details import REVEAL
from stoker.tasks.arguments import shown_arguments
from stoker.values.pickles import nothing_unpickled

from . import conf
from .calls import call_task
from .models import Failure, OrmQ, Schedule, Success, Task
from .tasks import enqueue_call


class ReadOnlyAdmin(admin.ModelAdmin):  # type: ignore[type-arg] # generic in the stubs only
    """Rows that can be viewed and deleted, but not added or changed."""

    def get_urls(self) -> list[URLPattern]:
        urls: list[URLPattern] = super().get_urls()
        for one in urls:
            one.callback = _without_unpickling(one.callback)
        return urls

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class TaskAdmin(ReadOnlyAdmin):
    """Tasks that have ended. Selected ones can be enqueued again."""

    list_display = ("name", "group", "func", "cluster", "started", "stopped", "time_taken")
    list_filter = ("group", "cluster")
    search_fields = ("id", "name", "func", "group")
    fields = (
        "id", "name", "func", "hook", "arguments", "keywords", "returned", "group", "cluster",
        "started", "stopped", "time_taken", "attempt_count",
    )  # fmt: skip
    readonly_fields = fields
    actions = ("resubmit",)

    def get_object(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Task | None:
        row: Task | None = super().get_object(request, *args, **kwargs)
        if row is not None:
            row.reveals = request.user.has_perm(REVEAL)  # type: ignore[attr-defined] # for this page
        return row

    @admin.display(description="args")
    def arguments(self, row: Task) -> str:
        return _shown(_call_of(row)[0])

    @admin.display(description="kwargs")
    def keywords(self, row: Task) -> str:
        return _shown(_call_of(row)[1])

    @admin.display(description="result")
    def returned(self, row: Task) -> str:
        return _shown(row.result)

    def has_resubmit_permission(self, request: HttpRequest) -> bool:
        return super(admin.ModelAdmin, self).has_change_permission(request)

    @admin.action(description="Resubmit selected tasks to queue", permissions=["resubmit"])
    def resubmit(self, request: HttpRequest, queryset: QuerySet[Task]) -> None:
        """Enqueue the selected tasks again, and delete the rows of failures, as Django Q does. Rows
        that cannot be read are kept."""
        count = 0
        for row in queryset:
            try:
                with transaction.atomic(using=conf.database()):
                    enqueue_again(row, str(request.user))
                    if not row.success:
                        row.delete()
            except StokerError as error:
                self.message_user(request, f"{row}: {error}", messages.ERROR)
            else:
                count += 1
        if count:
            text = ngettext("%d task was resubmitted.", "%d tasks were resubmitted.", count)
            self.message_user(request, text % count, messages.SUCCESS)


@admin.register(Success)
class SuccessAdmin(TaskAdmin):
    pass


@admin.register(Failure)
class FailureAdmin(TaskAdmin):
    list_display = ("name", "group", "func", "cluster", "started", "stopped", "short_result")


@admin.register(Schedule)
class DjangoQScheduleAdmin(admin.ModelAdmin):  # type: ignore[type-arg] # generic in the stubs only
    """Django Q's schedules. They are changed here, and not on the page of Stoker's own
    schedules."""

    list_display = (
        "id", "name", "func", "schedule_type", "repeats", "cluster", "next_run", "last_run",
        "success",
    )  # fmt: skip
    list_display_links = ("id", "name")
    list_filter = ("next_run", "schedule_type", "cluster")
    search_fields = ("name", "func")
    readonly_fields = ("last_run",)


ScheduleAdmin = DjangoQScheduleAdmin
"""Django Q's name, for projects that extend the class."""


@admin.register(OrmQ)
class OrmQAdmin(ReadOnlyAdmin):
    """Jobs that wait or run. Deleting a row cancels its job."""

    list_display = ("id", "key", "name", "group", "func", "lock")
    list_filter = ("queue",)
    fields = ("id", "key", "name", "func", "group", "lock")
    readonly_fields = fields

    @admin.display(description="queue", ordering="queue")
    def key(self, row: OrmQ) -> str:
        return row.queue

    def get_deleted_objects(
        self, objs: Iterable[OrmQ], request: HttpRequest
    ) -> tuple[list[str], dict[str, int], set[str], list[str]]:
        """Return the names of the jobs only: rows in other tables are not deleted here."""
        names = [str(row.name()) for row in objs]
        needed = set() if self.has_delete_permission(request) else {str(OrmQ._meta.verbose_name)}
        return names, {str(OrmQ._meta.verbose_name_plural): len(names)}, needed, []


def enqueue_again(row: Task, by: str) -> str:
    """Enqueue the call of a task again, and return the id of the new job.

    If the task failed, its dead letter is requeued.

    Raises:
        StokerError: its arguments cannot be read, or the function no longer exists.
    """
    if not row.success:
        with suppress(DeadLetterNotFound):
            answer = dead_letters.requeue(row.pk, by=by, backend=conf.alias())
            if answer.job_id is None:
                raise StokerError(f"Its dead letter was not requeued: {answer.because}")
            return answer.job_id.hex
    args, kwargs = row.args or (), row.kwargs or {}
    for value in (args, kwargs):
        if isinstance(value, str):  # the reason why they are not here
            raise StokerError(f"Its arguments cannot be read: {value}")
    options = {"hook": row.hook, "group": row.group, "cluster": row.cluster}
    return enqueue_call(row.func, args, kwargs, options)


def _without_unpickling(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """Wrap a view so that a GET request unpickles nothing, because unpickling runs code of the
    project."""

    @wraps(view)
    def inside(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if request.method == "POST":
            return view(request, *args, **kwargs)
        with nothing_unpickled():
            response = view(request, *args, **kwargs)
            # The template reads the rows.
            return response.render() if isinstance(response, TemplateResponse) else response

    return inside


def _call_of(row: Task) -> tuple[Any, Any]:
    """Return the arguments of a task, by position and by name, without those that are hidden."""
    args, kwargs = row.args, row.kwargs
    if isinstance(args, str) or isinstance(kwargs, str):  # the reason why they are not here
        return args, kwargs
    inner = call_task.under(row.func).inner_call(({}, [args or (), kwargs or {}]))
    secrets, reveals = conf.settings().redact, getattr(row, "reveals", False)
    call = shown_arguments(inner.task, inner.args, inner.kwargs, secrets, reveal=reveals)
    return tuple(call.args), call.kwargs


def _shown(value: Any) -> str:
    """Return a value as text, without reading the rows of model instances in it."""
    return value if isinstance(value, str) else repr(value)
