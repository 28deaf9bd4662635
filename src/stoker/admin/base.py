"""The base class of the admins: their requests, pages and operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import update_wrapper
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseNotAllowed,
    HttpResponseRedirect,
)
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, register_converter, reverse
from django.urls.converters import PathConverter

from stoker.brokers.outage import BrokerOutage, do_without_broker
from stoker.exceptions import BrokerUnavailable, ConfigurationError, NotMigrated
from stoker.operations.operation import NOT_FOUND, Done, Operation
from stoker.operations.request_context import ADMIN_PAGES, DASHBOARD, RequestContext
from stoker.store.engines.sessions import explained
from stoker.store.transactions import without_request_transaction
from stoker.tasks.decorator import own_backends
from stoker.values.pickles import nothing_unpickled
from stoker.values.text import shown_html


class AdminContext(RequestContext):
    """One request to the admin.

    Raises:
        Http404: No backend has the requested name.
        ConfigurationError: An option of the backend is wrong.
    """

    def __init__(self, request: HttpRequest, site_name: str) -> None:
        known = own_backends()
        aliases = sorted(known, key=lambda alias: (alias != "default", alias))
        asked = request.POST.get("backend") or request.GET.get("backend")
        alias = asked or next(iter(aliases), "default")
        if alias not in known:
            raise Http404(f"There is no backend {alias!r} of Stoker's.")
        super().__init__(request, known[alias].settings, aliases)
        self._site_name = site_name

    def require(self, permission: str) -> None:
        """Raise PermissionDenied unless the user has the permission."""
        if not self.may(permission):
            raise PermissionDenied(f"You need the permission {permission!r} for this.")

    @property
    def dashboard_address(self) -> str:
        """Return the URL of the dashboard's page that shows the same as this page, or else of its
        first page; "" = the project has no dashboard."""
        front = (f"{DASHBOARD}:overview", ())
        match = self.request.resolver_match
        same = [one for one, name in ADMIN_PAGES.items() if match and match.url_name == name]
        if match is None or not same:
            return self.address_of(front)
        return self.address_of((f"{DASHBOARD}:{same[0]}", [*match.kwargs.values()]), front)

    def path_of(self, name: str, args: Sequence[Any]) -> str:
        return reverse(f"admin:stoker_{name}", args=args, current_app=self._site_name)


class AnyNameConverter(PathConverter):
    """The name or id of an object in a URL. Unlike ``path``, it may contain line feeds."""

    regex = r"[\s\S]+"


register_converter(AnyNameConverter, "stoker_any")


class StoreAdmin(admin.ModelAdmin):  # type: ignore[type-arg] # generic in the stubs only
    """Admin pages for one table of the store. Django's own add, change and delete views are not
    used."""

    view_permission: ClassVar[str]
    plural: ClassVar[str]
    """The heading of the pages."""
    operations: ClassVar[Sequence[Operation]] = ()

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
        operations = [
            path(
                f"<stoker_any:object_id>/{operation.word}/",
                self.page(self._operation_view(operation)),
                name=self.url_name(operation.word),
            )
            for operation in self.operations
        ]
        one = path(
            "<stoker_any:object_id>/change/",
            self.page(self.one, self.view_permission),
            name=self.url_name("change"),
        )
        every = self.page(self.all, self.view_permission)
        return [path("", every, name=self.url_name("changelist")), *more, *operations, one]

    def pages(self) -> Sequence[tuple[str, str, Callable[..., HttpResponseBase]]]:
        """Return further pages as (URL, name, view). Each view checks the permission itself."""
        return ()

    def url_name(self, name: str) -> str:
        return f"{self.opts.app_label}_{self.opts.model_name}_{name}"

    def page(
        self, view: Callable[..., HttpResponseBase], permission: str = ""
    ) -> Callable[..., HttpResponseBase]:
        """Return the view for users of the admin who have the permission."""

        def inside(request: HttpRequest, **names: str) -> HttpResponseBase:
            if "\x00" in "".join((*names.values(), *request.GET.dict().values())):
                raise Http404("A name cannot contain a NUL character.")
            try:
                visit = AdminContext(request, self.admin_site.name)
            except ConfigurationError as error:  # without settings there is no page
                return HttpResponse(str(error), status=503, content_type="text/plain")
            if permission:
                visit.require(permission)
            try:
                with explained(visit.database), _guarded(request), _tolerant(request) as outage:
                    response = view(visit, **names)
                if isinstance(response, TemplateResponse):
                    (response.context_data or {})["outage"] = outage.sentence
                    response.add_post_render_callback(_show_marks)
                return response
            except (BrokerUnavailable, NotMigrated, ConfigurationError) as error:
                return self.show(visit, "problem", {"problem": str(error)}, status=503)
            except NOT_FOUND as error:
                raise Http404(str(error)) from error

        # Every operation makes its own transactions.
        behind = without_request_transaction(self.admin_site.admin_view(inside))
        return update_wrapper(behind, view)

    # -- pages ------------------------------------------------------------------------------------

    def all(self, visit: AdminContext) -> HttpResponseBase:
        """Return the list page."""
        raise NotImplementedError  # each admin has its own

    def one(self, visit: AdminContext, object_id: str) -> HttpResponseBase:
        """Return the page of one object."""
        raise NotImplementedError  # each admin that shows single things has its own

    def show(
        self, visit: AdminContext, template: str, context: Mapping[str, Any], status: int = 200
    ) -> HttpResponse:
        """Render a template of the admin pages, with the context that all of them need."""
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

    def buttons(
        self, visit: AdminContext, operations: Sequence[Operation], object_id: str
    ) -> list[dict[str, Any]]:
        """Return the buttons of the operations that the user may perform."""
        return [
            {
                "label": operation.title,
                "url": visit.at(f"{self.opts.model_name}_{operation.word}", object_id),
                "asks": operation.question,
                "is_grave": operation.is_grave,
            }
            for operation in operations
            if visit.may(operation.permission)
        ]

    def _list_path(self, visit: AdminContext) -> str:
        return visit.at(f"{self.opts.model_name}_changelist").partition("?")[0]

    # -- operations -------------------------------------------------------------------------------

    def _operation_view(self, operation: Operation) -> Callable[..., HttpResponseBase]:
        def view(visit: AdminContext, object_id: str) -> HttpResponseBase:
            visit.require(operation.permission)
            if visit.request.method == "POST":
                done = operation.attempt(visit.operator, object_id)
                is_gone = operation.word == "delete" and done.is_good
                back = self._list_path(visit) if is_gone else self._back(visit, object_id)
                return self.done(visit, done, back)
            if not operation.question:
                return HttpResponseNotAllowed(["POST"])
            return self.confirm(
                visit,
                operation,
                title=operation.title,
                question=operation.question.format(name=object_id),
                action=visit.at(f"{self.opts.model_name}_{operation.word}", object_id),
                back=self._back(visit, object_id),
            )

        return view

    def confirm(
        self, visit: AdminContext, operation: Operation, title: str, **context: Any
    ) -> HttpResponse:
        """Return the confirmation page of an operation.

        Args:
            context: ``question``, ``action`` and ``back``; ``fields`` for hidden fields; ``items``
                for a list of targets.
        """
        shown = {"title": title, "label": operation.title, "is_grave": operation.is_grave}
        return self.show(visit, "confirm", {**shown, **context})

    def done(self, visit: AdminContext, done: Done, back: str) -> HttpResponseRedirect:
        """Redirect to the page of the new job or to the previous page, and show the answer
        there."""
        level = messages.SUCCESS if done.is_good else messages.ERROR
        messages.add_message(visit.request, level, done.sentence)
        return HttpResponseRedirect(visit.at("job_change", done.job_id) if done.job_id else back)

    def _back(self, visit: AdminContext, object_id: str) -> str:
        return visit.at(f"{self.opts.model_name}_change", object_id)


def _show_marks(response: HttpResponse) -> None:
    """Show control characters and bidirectional marks of texts as escapes."""
    response.content = shown_html(response.content.decode())


def _guarded(request: HttpRequest) -> AbstractContextManager[None]:
    """Forbid unpickling during a GET request: it would run code of the project."""
    return nullcontext() if request.method == "POST" else nothing_unpickled()


def _tolerant(request: HttpRequest) -> AbstractContextManager[BrokerOutage]:
    """Show what the database knows while the broker does not answer. A POST request changes
    something, so it fails instead."""
    return nullcontext(BrokerOutage()) if request.method == "POST" else do_without_broker()
