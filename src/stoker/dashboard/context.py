"""The request of a user to the dashboard, and the sections that this user may see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from django.urls import reverse

from stoker.operations.request_context import ADMIN_PAGES, DASHBOARD, RequestContext

SIGN_OUT = ("logout", "account_logout", "admin:logout")
"""Names of the views that sign users out in Django, in django-allauth and in the admin."""


@dataclass(frozen=True, slots=True)
class Section:
    """One entry of the navigation."""

    key: str
    """The key that opens the section when it is pressed after ``g``."""
    name: str
    """The name of the section's first page."""
    title: str
    permission: str
    pages: tuple[str, ...] = ()
    """The names of the section's further pages."""


SECTIONS = (
    Section("o", "overview", "Overview", "stoker.view_job"),
    Section("j", "jobs", "Jobs", "stoker.view_job", ("job", "edit-one-job")),
    Section("q", "queues", "Queues", "stoker.view_job", ("queue",)),
    Section("g", "guards", "Guards", "stoker.view_job", ("guard",)),
    Section("t", "tasks", "Tasks", "stoker.view_job", ("task",)),
    Section(
        "d",
        "dead-letters",
        "Dead letters",
        "stoker.view_deadletter",
        ("dead-letter", "edit-letter"),
    ),
    Section(
        "s",
        "schedules",
        "Schedules",
        "stoker.view_schedule",
        ("schedule", "add-schedule", "change-schedule"),
    ),
    Section("w", "workflows", "Workflows", "stoker.view_workflow", ("workflow",)),
    Section("b", "bulk-operations", "Bulk", "stoker.view_bulkoperation", ("bulk", "new-bulk")),
    Section("c", "clusters", "Clusters", "stoker.view_cluster"),
    Section("a", "audit", "Audit", "stoker.view_bulkoperation"),
)
PAGES = frozenset(name for section in SECTIONS for name in (section.name, *section.pages))
"""The names of all pages."""


class DashboardContext(RequestContext):
    """One request to the dashboard."""

    @cached_property
    def allowed(self) -> dict[str, bool]:
        """Return the user's permissions for templates, as in ``visit.allowed.cancel_job``."""
        return _Allowed(self)

    def path_of(self, name: str, args: Sequence[Any]) -> str:
        match = self.request.resolver_match
        namespace = match.namespace if match is not None else ""
        return reverse(f"{DASHBOARD}:{name}", args=args, current_app=namespace or None)

    @property
    def refusal(self) -> str:
        """Return why the user may see no page; "" = the user may see one."""
        user = getattr(self.request, "user", None)
        if user is None or not user.is_authenticated or not user.is_active:
            return "Sign in first."
        if not any(self.may(section.permission) for section in SECTIONS):
            return "You have no permission to see anything here."
        return ""

    @property
    def page(self) -> str:
        """Return the name of the requested page."""
        match = self.request.resolver_match
        return match.url_name or "" if match is not None else ""

    @property
    def sign_out_address(self) -> str:
        """Return the URL that signs the user out; "" = the project has none."""
        return self.address_of(*((name, ()) for name in SIGN_OUT)).partition("?")[0]

    @property
    def admin_address(self) -> str:
        """Return the URL of the admin's page that shows the same as this page, or else of the
        admin's first page; "" = this user has no admin."""
        if not getattr(self.request.user, "is_staff", False):
            return ""
        front = ("admin:index", ())
        match = self.request.resolver_match
        same = ADMIN_PAGES.get(self.page)
        if match is None or same is None:
            return self.address_of(front)
        return self.address_of((f"admin:{same}", [*match.kwargs.values()]), front)

    @property
    def sections(self) -> list[dict[str, Any]]:
        """Return the entries of the navigation that this user may see."""
        return [
            {
                "key": section.key,
                "title": section.title,
                "address": self.at(section.name),
                "is_current": self.page in (section.name, *section.pages),
            }
            for section in SECTIONS
            if self.may(section.permission)
        ]


class _Allowed(dict[str, bool]):
    """Permission without ``stoker.`` -> whether the user has it. Each is checked on first
    access."""

    def __init__(self, context: DashboardContext) -> None:
        super().__init__()
        self._context = context

    def __missing__(self, name: str) -> bool:
        self[name] = self._context.may(f"stoker.{name}")
        return self[name]
