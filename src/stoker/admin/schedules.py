"""Schedules in the admin: a list, a page for each schedule, and a form to add and change them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from django.contrib import admin
from django.http import HttpRequest, JsonResponse
from django.http.response import HttpResponseBase

from stoker.exceptions import PackageError
from stoker.models import Schedule
from stoker.operations import schedules as operations
from stoker.operations.operation import Done
from stoker.operations.schedule_form import ScheduleForm, form_to_add, form_to_change, saved
from stoker.operations.schedules import MOMENT, next_ticks_of, rule_of
from stoker.operations.wording import exactly, since
from stoker.schedules import service as schedules
from stoker.tasks.schedules import Scheduled
from stoker.values.text import first_line_of, shown_text

from .base import AdminContext, StoreAdmin

PAGE = 100


@admin.register(Schedule)
class ScheduleAdmin(StoreAdmin):
    view_permission = "stoker.view_schedule"
    plural = "Schedules"
    operations = (operations.RUN, operations.PAUSE, operations.RESUME, operations.DELETE)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm("stoker.add_schedule"))

    def pages(self) -> Sequence[tuple[str, str, Callable[..., HttpResponseBase]]]:
        return (
            ("add/", "add", self.add),
            ("preview/", "preview", self.preview),
            ("<stoker_any:object_id>/edit/", "edit", self.edit),
        )

    def all(self, visit: AdminContext) -> HttpResponseBase:
        after, text = visit.request.GET.get("after", ""), visit.request.GET.get("q", "").strip()
        rows, mark = operations.page_of(visit.settings, PAGE, after, text)
        context = {
            "rows": [_row(visit, row) for row in rows],
            "text": text,
            **visit.paging(mark),
            "add_url": visit.at("schedule_add") if visit.may("stoker.add_schedule") else "",
        }
        return self.show(visit, "schedules", context)

    def one(self, visit: AdminContext, object_id: str) -> HttpResponseBase:
        row = schedules.get(object_id, backend=visit.alias)
        buttons = [operations.RUN, operations.RESUME if row.is_paused else operations.PAUSE]
        buttons += [] if row.is_declared else [operations.DELETE]
        may_change = not row.is_declared and all(
            visit.may(one) for one in ("stoker.change_schedule", "stoker.view_job")
        )
        context = {
            "title": row.name,
            **_row(visit, row),
            **operations.call_for(visit, row),
            "facts": operations.facts_of(row),
            "pause": operations.pause_of(row),
            "moments": [] if row.is_paused else _next(row),
            "ticks": [
                {
                    "moment": row.in_zone(tick.moment_us).strftime(MOMENT),
                    "text": operations.tick_text(tick),
                    "url": visit.at("job_change", tick.job_id) if tick.job_id else "",
                }
                for tick in schedules.ticks(row.name, backend=visit.alias)
            ],
            "buttons": self.buttons(visit, buttons, row.name),
            "edit_url": visit.at("schedule_edit", row.name) if may_change else "",
        }
        return self.show(visit, "schedule", context)

    # -- added and changed ------------------------------------------------------------------------

    def add(self, visit: AdminContext) -> HttpResponseBase:
        visit.require("stoker.add_schedule")
        form = form_to_add(visit)
        if done := saved(visit, form):
            return self.done(visit, done, self._back(visit, form.cleaned_data["name"]))
        return self._form(visit, form, "Add a schedule", visit.at("schedule_changelist"))

    def edit(self, visit: AdminContext, object_id: str) -> HttpResponseBase:
        visit.require("stoker.change_schedule")
        visit.require("stoker.view_job")  # the form shows the arguments
        row = schedules.get(object_id, backend=visit.alias)
        back = self._back(visit, row.name)
        try:
            form = form_to_change(visit, row.name)
        except (PackageError, ValueError) as error:
            return self.done(visit, Done(first_line_of(error), is_good=False), back)
        if done := saved(visit, form, row.name):
            return self.done(visit, done, back)
        return self._form(visit, form, f"Change {row.name}", back, row.name)

    def preview(self, visit: AdminContext) -> HttpResponseBase:
        """Describe the schedule in words while a user fills in the form."""
        if not visit.may("stoker.change_schedule"):
            visit.require("stoker.add_schedule")
        name = visit.request.GET.get("name", "")
        try:
            form = form_to_change(visit, name) if name else ScheduleForm(visit.request.POST)
        except (PackageError, ValueError) as error:
            return JsonResponse({"problems": [first_line_of(error)]})
        if not form.is_valid():
            problems = [
                shown_text(
                    str(text) if name == "__all__" else f"{form.fields[name].label or name}: {text}"
                )
                for name, texts in form.errors.items()
                for text in texts
            ]
            return JsonResponse({"problems": problems})
        preview = {"problems": [], "words": rule_of(form.when), "next": _next(form.when)}
        return JsonResponse(preview)

    def _form(
        self, visit: AdminContext, form: ScheduleForm, title: str, back: str, name: str = ""
    ) -> HttpResponseBase:
        preview_url = visit.at("schedule_preview", name=name)
        context = {"title": title, "form": form, "back": back, "preview_url": preview_url}
        return self.show(visit, "schedule_form", context)


def _row(visit: AdminContext, row: Schedule) -> dict[str, Any]:
    moments = [] if row.is_paused else _next(row, 1)
    return {
        "row": row,
        "url": visit.at("schedule_change", row.name),
        "words": rule_of(row),
        "state": operations.state_of(row),
        "next": moments[0] if moments else "",
        "last": exactly(row.last_moment),
        "last_ago": since(row.last_moment),
    }


def _next(schedule: Schedule | Scheduled, count: int = 5) -> list[str]:
    return [moment.strftime(MOMENT) for moment in next_ticks_of(schedule, count)]
