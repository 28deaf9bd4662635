"""What all pages of the admin share: the request, the words, and the base class of the admins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import update_wrapper
from pprint import pformat
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseNotAllowed,
    HttpResponseRedirect,
)
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone

from stoker.compat import InvalidTask, TaskResultDoesNotExist
from stoker.conf import Settings
from stoker.exceptions import (
    BrokerUnavailable,
    ClusterNotFound,
    ConfigurationError,
    DeadLetterNotFound,
    NotMigrated,
    QueueNotFound,
    ScheduleNotFound,
    StokerError,
)
from stoker.jobs.states import explained
from stoker.tasks.decorator import own_backends
from stoker.values.serializers import nothing_unpickled

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


UNKNOWN = "\N{EN DASH}"
LONGEST_SHOWN = 20_000
WIDTH = 100
STEPS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def shown_moment(moment: datetime | None) -> str:
    """As in "2030-01-31 06:00:05 UTC", in the current time zone."""
    if moment is None:
        return UNKNOWN
    if timezone.is_aware(moment):
        moment = timezone.localtime(moment)
    return f"{moment:%Y-%m-%d %H:%M:%S %Z}".strip()


def duration(seconds: float | None) -> str:
    """As in "340 ms", "4.2 s", "3 min 20 s", "2 d 4 h"."""
    if seconds is None:
        return UNKNOWN
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    whole = int(seconds)
    parts = []
    for size, name in STEPS:
        number, whole = divmod(whole, size)
        parts += [f"{number} {name}"] if number else []
    return " ".join(parts[:2])


def ago(moment: datetime | None) -> str:
    """As in "3 min ago" or "in 20 s"."""
    if moment is None:
        return UNKNOWN
    now = datetime.now(UTC) if timezone.is_aware(moment) else timezone.now()
    seconds = (now - moment).total_seconds()
    return f"{duration(seconds)} ago" if seconds >= 0 else f"in {duration(-seconds)}"


def shown(value: Any) -> str:
    """A value as Python would write it, of bearable length."""
    text = pformat(value, width=WIDTH, sort_dicts=False)
    if len(text) <= LONGEST_SHOWN:
        return text
    return f"{text[:LONGEST_SHOWN]}\N{HORIZONTAL ELLIPSIS} ({len(text):,} characters)"


def first_line(text: str, most: int = 120) -> str:
    line = text.strip().partition("\n")[0]
    return line if len(line) <= most else f"{line[: most - 1]}\N{HORIZONTAL ELLIPSIS}"


if TYPE_CHECKING:
    Registered = admin.ModelAdmin[Any]
else:  # at run time it takes no parameter
    Registered = admin.ModelAdmin

LONGEST_REASON = 255
NOT_FOUND = (
    ClusterNotFound,
    DeadLetterNotFound,
    QueueNotFound,
    ScheduleNotFound,
    TaskResultDoesNotExist,
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a verb."""

    sentence: str
    is_good: bool = True
    to: str = ""
    """Where one goes on; "" = where one came from."""


@dataclass(frozen=True, slots=True)
class Verb:
    """Something that can be done about one thing."""

    name: str
    """Part of the address, as ``cancel``."""
    label: str
    """Of the button."""
    permission: str
    """As the API has it."""
    run: Callable[[Visit, str, str], Outcome]
    """Given the visit, the name of the thing and a reason."""
    asks: str = ""
    """What is asked on a page of its own before it is done; "" = nothing."""
    is_grave: bool = False


class StoreAdmin(Registered):
    """No row is added, saved or deleted by Django here."""

    view_permission: ClassVar[str]
    plural: ClassVar[str]
    """What the pages are headed with."""
    verbs: ClassVar[Sequence[Verb]] = ()

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return bool(request.user.has_perm(self.view_permission))

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    # -- addresses --------------------------------------------------------------------------------

    def get_urls(self) -> list[URLPattern]:
        more = [
            path(address, self.page(view), name=self.url_name(name))
            for address, name, view in self.pages()
        ]
        verbs = [
            path(f"<path:object_id>/{verb.name}/", self.page(self._verb_view(verb)), name=name)
            for verb in self.verbs
            for name in [self.url_name(verb.name)]
        ]
        one = path(
            "<path:object_id>/change/",
            self.page(self.one, self.view_permission),
            name=self.url_name("change"),
        )
        every = self.page(self.all, self.view_permission)
        return [path("", every, name=self.url_name("changelist")), *more, *verbs, one]

    def pages(self) -> Sequence[tuple[str, str, Callable[..., HttpResponseBase]]]:
        """Further pages: address, name, view. Each says itself who may see it."""
        return ()

    def url_name(self, name: str) -> str:
        return f"{self.opts.app_label}_{self.opts.model_name}_{name}"

    def page(
        self, view: Callable[..., HttpResponseBase], permission: str = ""
    ) -> Callable[..., HttpResponseBase]:
        """The view, behind the door of the admin."""

        def inside(request: HttpRequest, **names: str) -> HttpResponseBase:
            if "\x00" in "".join((*names.values(), *request.GET.dict().values())):
                raise Http404("No store has anything with a NUL character in it.")
            visit = Visit(request, self.admin_site.name)
            if permission:
                visit.require(permission)
            try:
                with explained(visit.database), _guarded(request):
                    return view(visit, **names)
            except (BrokerUnavailable, NotMigrated) as error:
                return self.show(visit, "problem", {"problem": str(error)}, status=503)
            except NOT_FOUND as error:
                raise Http404(str(error)) from error

        # Every verb makes transactions of its own.
        behind = transaction.non_atomic_requests(self.admin_site.admin_view(inside))
        return update_wrapper(behind, view)

    # -- pages ------------------------------------------------------------------------------------

    def all(self, visit: Visit) -> HttpResponseBase:
        """The list."""
        raise NotImplementedError  # each admin has its own

    def one(self, visit: Visit, object_id: str) -> HttpResponseBase:
        """The page of one."""
        raise NotImplementedError  # each admin that shows single things has its own

    def show(
        self, visit: Visit, template: str, context: Mapping[str, Any], status: int = 200
    ) -> HttpResponse:
        """A page of the admin."""
        request = visit.request
        request.current_app = self.admin_site.name
        everywhere = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": self.plural,
            "plural": self.plural,
            "visit": visit,
            "list_url": visit.at(f"{self.opts.model_name}_changelist"),
            "backends": [
                {"alias": alias, "url": f"{self._list_path(visit)}?backend={alias}"}
                for alias in visit.aliases
            ],
        }
        names = [f"stoker/admin/{template}.html"]
        return TemplateResponse(request, names, everywhere | dict(context), status=status)

    def buttons(self, visit: Visit, names: Sequence[str], object_id: str) -> list[dict[str, Any]]:
        """The verbs of these names that the user may use."""
        return [
            {
                "label": verb.label,
                "url": visit.at(f"{self.opts.model_name}_{verb.name}", object_id),
                "asks": verb.asks,
                "is_grave": verb.is_grave,
            }
            for verb in self.verbs
            if verb.name in names and visit.may(verb.permission)
        ]

    def _list_path(self, visit: Visit) -> str:
        return visit.at(f"{self.opts.model_name}_changelist").partition("?")[0]

    # -- verbs ------------------------------------------------------------------------------------

    def _verb_view(self, verb: Verb) -> Callable[..., HttpResponseBase]:
        def view(visit: Visit, object_id: str) -> HttpResponseBase:
            visit.require(verb.permission)
            if visit.request.method == "POST":
                outcome = run(lambda: verb.run(visit, object_id, reason_of(visit)))
                return self.done(visit, outcome, self._back(visit, object_id))
            if verb.asks:
                return self._ask(visit, verb, object_id)
            return HttpResponseNotAllowed(["POST"])

        return view

    def _ask(self, visit: Visit, verb: Verb, object_id: str) -> HttpResponse:
        context = {
            "title": verb.label,
            "question": verb.asks.format(name=object_id),
            "label": verb.label,
            "is_grave": verb.is_grave,
            "action": visit.at(f"{self.opts.model_name}_{verb.name}", object_id),
            "back": self._back(visit, object_id),
            "fields": [],
        }
        return self.show(visit, "confirm", context)

    def done(self, visit: Visit, outcome: Outcome, back: str) -> HttpResponseRedirect:
        """Say what came of it, and go on."""
        level = messages.SUCCESS if outcome.is_good else messages.ERROR
        messages.add_message(visit.request, level, outcome.sentence)
        return HttpResponseRedirect(outcome.to or back)

    def _back(self, visit: Visit, object_id: str) -> str:
        return visit.at(f"{self.opts.model_name}_change", object_id)


def run(act: Callable[[], Outcome]) -> Outcome:
    """Do it; what Stoker refuses is an outcome, too."""
    try:
        return act()
    except (PermissionDenied, BrokerUnavailable, NotMigrated, *NOT_FOUND):
        raise
    except (StokerError, InvalidTask, ValueError, TypeError) as error:
        return Outcome(first_sentence(error), is_good=False)


def run_one_of_many(act: Callable[[], Outcome]) -> Outcome:
    """The same, where one that is gone meanwhile does not keep the others."""
    try:
        return run(act)
    except NOT_FOUND as error:
        return Outcome(first_sentence(error), is_good=False)


def first_sentence(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def reason_of(visit: Visit) -> str:
    """Why, as it was said in the form."""
    return visit.request.POST.get("because", "").strip()[:LONGEST_REASON]


def _guarded(request: HttpRequest) -> AbstractContextManager[None]:
    """Who only looks runs no code of the project's."""
    return nullcontext() if request.method == "POST" else nothing_unpickled()
