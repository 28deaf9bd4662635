"""Who looks at the dashboard, and at which backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest
from django.urls import reverse

from stoker.conf import Settings

APP = "stoker-dashboard"


@dataclass(frozen=True, slots=True)
class Section:
    """One entry of the navigation."""

    name: str
    """Of its address."""
    title: str
    permission: str
    pages: tuple[str, ...] = ()
    """Other addresses that belong to it."""


SECTIONS = (
    Section("overview", "Overview", "stoker.view_job"),
    Section("jobs", "Jobs", "stoker.view_job", ("job",)),
    Section("queues", "Queues", "stoker.view_job", ("queue",)),
    Section("tasks", "Tasks", "stoker.view_job", ("task",)),
    Section("dead-letters", "Dead letters", "stoker.view_deadletter", ("dead-letter",)),
    Section("schedules", "Schedules", "stoker.view_schedule", ("schedule",)),
    Section("workflows", "Workflows", "stoker.view_workflow", ("workflow",)),
    Section("clusters", "Clusters", "stoker.view_cluster"),
)


class Visit:
    """One request of somebody who is signed in."""

    def __init__(self, request: HttpRequest, settings: Settings, aliases: tuple[str, ...]) -> None:
        self.request = request
        self.settings = settings
        self.aliases = aliases
        """Of all backends that are Stoker's: more than one makes a switch."""

    @property
    def alias(self) -> str:
        return self.settings.alias

    @property
    def database(self) -> str:
        """The alias of the store."""
        return self.settings.database

    @property
    def by(self) -> str:
        """Who it is, as histories keep it."""
        return str(self.request.user.get_username())[:150]

    def may(self, permission: str) -> bool:
        """Whether the user has this permission, as ``stoker.cancel_job``."""
        return bool(self.request.user.has_perm(permission))

    @cached_property
    def allowed(self) -> Mapping[str, bool]:
        """For templates: ``visit.allowed.cancel_job``."""
        return _Allowed(self)

    def at(self, name: str, /, *args: Any, **query: Any) -> str:
        """The address of a page of the dashboard, for this backend.

        Args:
            name: of the page.
            args: of its address.
            query: what follows the question mark; None and "" are left out.
        """
        match = self.request.resolver_match
        namespace = match.namespace if match is not None else ""
        path = reverse(f"{APP}:{name}", args=args, current_app=namespace or None)
        if self.alias != self.aliases[0]:
            query["backend"] = self.alias
        given = {key: value for key, value in query.items() if value not in (None, "")}
        return f"{path}?{urlencode(given)}" if given else path

    @property
    def page(self) -> str:
        """The name of the page that is looked at."""
        match = self.request.resolver_match
        return match.url_name or "" if match is not None else ""

    @property
    def sections(self) -> list[dict[str, Any]]:
        """The navigation: what this user may see."""
        return [
            {
                "title": section.title,
                "address": self.at(section.name),
                "is_current": self.page in (section.name, *section.pages),
            }
            for section in SECTIONS
            if self.may(section.permission)
        ]


class _Allowed(dict[str, bool]):
    """Asked for when it is needed: a name without ``stoker.`` -> whether it is allowed."""

    def __init__(self, visit: Visit) -> None:
        super().__init__()
        self._visit = visit

    def __missing__(self, name: str) -> bool:
        self[name] = self._visit.may(f"stoker.{name}")
        return self[name]
