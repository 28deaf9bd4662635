"""One request of a user of the admin: which backend it is about, what he may, where links lead."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest
from django.urls import reverse

from stoker.conf import Settings
from stoker.exceptions import ConfigurationError
from stoker.tasks import own_backends

BACKEND = "backend"


class Visit:
    """Who looks at which store.

    Raises:
        Http404: there is no backend of the name that was asked for.
    """

    def __init__(self, request: HttpRequest, site_name: str) -> None:
        known = own_backends()
        self.aliases = sorted(known, key=lambda alias: (alias != "default", alias))
        """Of all backends that are Stoker's; the first is meant where none is named."""
        asked = request.POST.get(BACKEND) or request.GET.get(BACKEND)
        alias = asked or next(iter(self.aliases), "default")
        if alias not in known:
            raise Http404(f"There is no backend {alias!r} of Stoker's.")
        try:
            self.settings: Settings = known[alias].settings
        except ConfigurationError as error:
            raise Http404(str(error)) from error
        self.request = request
        self._site_name = site_name

    @property
    def alias(self) -> str:
        return self.settings.alias

    @property
    def database(self) -> str:
        """That of the store."""
        return self.settings.database

    @property
    def by(self) -> str:
        """Who it is, as histories keep it."""
        return str(self.request.user.get_username())[:150]

    def may(self, permission: str) -> bool:
        """Whether the user has this permission, as ``stoker.cancel_job``."""
        return bool(self.request.user.has_perm(permission))

    def require(self, permission: str) -> None:
        """Raises PermissionDenied where he has it not."""
        if not self.may(permission):
            raise PermissionDenied(f"You need the permission {permission!r} for this.")

    def at(self, name: str, *args: Any, **query: Any) -> str:
        """The address of a page of ours, for this backend.

        Args:
            name: as ``job_changelist``.
            args: of its address.
            query: what follows the question mark; None and "" are left out.
        """
        path = reverse(f"admin:stoker_{name}", args=args, current_app=self._site_name)
        if self.alias != self.aliases[0]:
            query[BACKEND] = self.alias
        given = {key: value for key, value in query.items() if value not in (None, "")}
        return f"{path}?{urlencode(given)}" if given else path

    def here(self, **changes: Any) -> str:
        """This page again, with another query."""
        query = {**self.request.GET.dict(), **changes}
        given = {key: value for key, value in query.items() if value not in (None, "")}
        return f"{self.request.path}?{urlencode(given)}"
