"""A request to a page of the admin or the dashboard, with its user and backend."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse

from stoker.conf import Settings
from stoker.values.text import stored_text

from .operation import LONGEST_NAME, LONGEST_REASON, Operator

DASHBOARD = "stoker-dashboard"
"""The namespace of the dashboard's URLs."""
ADMIN_PAGES = {
    "jobs": "stoker_job_changelist",
    "job": "stoker_job_change",
    "queues": "stoker_pausedqueue_changelist",
    "dead-letters": "stoker_deadletter_changelist",
    "dead-letter": "stoker_deadletter_change",
    "schedules": "stoker_schedule_changelist",
    "clusters": "stoker_cluster_changelist",
}
"""Page of the dashboard -> the page of the admin that shows the same."""


class RequestContext(ABC):
    """One request of a user for one backend.

    Attributes:
        aliases: All backends of Stoker. The first is used if a request names none.
    """

    def __init__(self, request: HttpRequest, settings: Settings, aliases: Sequence[str]) -> None:
        self.request = request
        self.settings = settings
        self.aliases = aliases

    @property
    def alias(self) -> str:
        """Return the name of the backend under ``TASKS``."""
        return self.settings.alias

    @property
    def database(self) -> str:
        """Return the alias of the store's database."""
        return self.settings.database

    @property
    def operator(self) -> Operator:
        """Return the user as an operator, with the reason from the form."""
        by = str(self.request.user.get_username())[:LONGEST_NAME]
        because = stored_text(self.request.POST.get("because", "").strip(), LONGEST_REASON)
        return Operator(self.settings, by, because)

    def may(self, permission: str) -> bool:
        """Return whether the user has a permission such as ``stoker.cancel_job``."""
        return bool(self.request.user.has_perm(permission))

    def at(self, name: str, /, *args: Any, **query: Any) -> str:
        """Return the URL of a page for this backend.

        Args:
            name: The name of the page.
            args: The arguments of its URL.
            query: The query string; None and "" are left out.
        """
        if self.alias != self.aliases[0]:
            query["backend"] = self.alias
        return with_query(self.path_of(name, args), query)

    def address_of(self, *pages: tuple[str, Sequence[Any]]) -> str:
        """Return the URL of the first page that this project has; "" = it has none of them.

        Args:
            pages: The full names of views, each with the arguments of its URL.
        """
        query = {"backend": self.alias} if len(self.aliases) > 1 else {}
        for name, args in pages:
            try:
                return with_query(reverse(name, args=args), query)
            except NoReverseMatch:
                continue
        return ""

    def here(self, **changes: Any) -> str:
        """Return the URL of this page with other parameters."""
        return with_query(self.request.path, {**self.request.GET.dict(), **changes})

    def paging(self, after: str | None) -> dict[str, str]:
        """Return the URLs of the next page and of the first page. The URL of the first page is ""
        on that page.

        Args:
            after: The mark of the next page; None = this is the last page.
        """
        return {
            "next": self.here(after=after) if after else "",
            "first": self.here(after="") if self.request.GET.get("after") else "",
        }

    def tabs(
        self, states: Iterable[str], current: str, numbers: Mapping[str, str] | None = None
    ) -> list[dict[str, Any]]:
        """Return a link to this page for each state; the state "" stands for all."""
        return [
            {
                "title": state.lower() or "all",
                "address": self.here(state=state, after=""),
                "is_current": state == current,
                "number": (numbers or {}).get(state, ""),
            }
            for state in states
        ]

    @abstractmethod
    def path_of(self, name: str, args: Sequence[Any]) -> str:
        """Return the path of a page."""


def with_query(path: str, query: dict[str, Any]) -> str:
    """Return the path with a query string; None and "" are left out."""
    given = {key: value for key, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(given)}" if given else path
