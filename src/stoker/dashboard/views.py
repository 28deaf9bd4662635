"""What every request passes before and after its view: who may, and tidy answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.core import signing
from django.core.exceptions import ImproperlyConfigured
from django.db import InterfaceError, OperationalError, transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.template.loader import render_to_string
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.csrf import csrf_protect

from stoker.compat import TaskResultDoesNotExist
from stoker.conf import settings_for
from stoker.exceptions import ScheduleExists, StokerError
from stoker.tasks.decorator import own_backends
from stoker.values.serializers import nothing_unpickled

from .request_context import Visit

POLICY = (
    "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)
NO_ANSWER = (OperationalError, InterfaceError)
SILENT = "The database does not answer. `manage.py stoker health` says more."
NOBODY = (
    "The dashboard asks who somebody is: it needs django.contrib.auth and django.contrib.sessions "
    "in INSTALLED_APPS, and SessionMiddleware and AuthenticationMiddleware in MIDDLEWARE."
)
NOTICE = "stoker_notice"
NOTICE_SECONDS = 120
LONGEST_NOTICE = 800
"""A cookie has room for no more than 4 KB."""


class Refusal(Exception):
    """The answer is a page with this sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


@dataclass(frozen=True, slots=True)
class Page:
    """What a view of a page gives back."""

    template: str
    """Its name, as "jobs"."""
    context: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Done:
    """What a view of an action gives back."""

    sentence: str
    """What was done, for the next page to say."""
    is_bad: bool = False
    undo: str = ""
    """The name of an action that takes it back."""
    fields: tuple[tuple[str, str], ...] = ()
    """What that is given."""
    to: str = ""
    """Where to go on; "" = where the action was asked for."""


def page(permission: str) -> Callable[[Callable[..., Page]], Callable[..., HttpResponseBase]]:
    """A view that shows something to whoever has this permission."""

    def decorate(view: Callable[..., Page]) -> Callable[..., HttpResponseBase]:
        def answer(visit: Visit, *args: Any, **kwargs: Any) -> HttpResponse:
            with nothing_unpickled():
                shown = view(visit, *args, **kwargs)
            return rendered(visit, f"stoker/dashboard/{shown.template}.html", shown.context)

        return _enclosed(wraps(view)(answer), ("GET", "HEAD"), permission)

    return decorate


def action(permission: str) -> Callable[[Callable[..., Done]], Callable[..., HttpResponseBase]]:
    """A view that changes something, for whoever has this permission. Then it goes back to where it
    was asked for, which says what was done."""

    def decorate(view: Callable[..., Done]) -> Callable[..., HttpResponseBase]:
        def answer(visit: Visit) -> HttpResponse:
            done = view(visit)
            response = HttpResponseRedirect(done.to or _way_back(visit))
            notice = [done.sentence[:LONGEST_NOTICE], done.is_bad, done.undo, done.fields]
            response.set_cookie(
                NOTICE,
                signing.dumps(notice, salt=NOTICE, compress=True),
                max_age=NOTICE_SECONDS,
                httponly=True,
                samesite="Lax",
                secure=visit.request.is_secure(),
            )
            return response

        return _enclosed(wraps(view)(answer), ("POST",), permission)

    return decorate


def rendered(
    visit: Visit, template: str, context: dict[str, Any], status: int = 200
) -> HttpResponse:
    """A page for this visit, with what the last action has to say."""
    is_whole = visit.request.headers.get("X-Stoker-Live") is None
    notice = _notice(visit.request) if is_whole else None
    text = render_to_string(
        template, {"visit": visit, "notice": notice, **context}, request=visit.request
    )
    response = HttpResponse(text, status=status)
    if notice is not None:
        response.delete_cookie(NOTICE)
    return response


def _enclosed(
    view: Callable[..., HttpResponse], methods: tuple[str, ...], permission: str
) -> Callable[..., HttpResponseBase]:
    @wraps(view)
    def inside(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        try:
            response = _answered(view, methods, permission, request, *args, **kwargs)
        except NO_ANSWER:  # to who somebody is, say: what is ours says so on a page
            response = HttpResponse(SILENT, status=503, content_type="text/plain; charset=utf-8")
        response.headers.setdefault("Content-Security-Policy", POLICY)
        response.headers.setdefault("Referrer-Policy", "same-origin")
        response.headers["Cache-Control"] = "no-store"
        return response

    # Every action makes its own transactions. Who may is said here, whatever the site says.
    return transaction.non_atomic_requests(login_not_required(csrf_protect(inside)))


def _answered(
    view: Callable[..., HttpResponse],
    methods: tuple[str, ...],
    permission: str,
    request: HttpRequest,
    *args: Any,
    **kwargs: Any,
) -> HttpResponseBase:
    visit = entered(request)
    user = getattr(request, "user", None)
    if user is None:
        raise ImproperlyConfigured(NOBODY)
    if not user.is_authenticated or not user.is_active:
        return _to_login(visit)
    try:
        _refuse(visit, methods, permission)
        return view(visit, *args, **kwargs)
    except Refusal as refusal:
        response = _refused(visit, refusal.status, refusal.sentence)
        if refusal.status == 405:
            response.headers["Allow"] = ", ".join(methods)
        return response
    except (TaskResultDoesNotExist, LookupError) as error:
        if not isinstance(error, TaskResultDoesNotExist | StokerError):
            raise
        return _refused(visit, 404, str(error))
    except ScheduleExists as error:
        return _refused(visit, 409, str(error))
    except StokerError as error:
        return _refused(visit, 503, str(error))


def _to_login(visit: Visit) -> HttpResponse:
    # Cannot be imported where django.contrib.auth is not installed: then NOBODY is said.
    from django.contrib.auth.views import redirect_to_login

    request = visit.request
    return redirect_to_login(
        request.get_full_path() if request.method == "GET" else visit.at("overview")
    )


def entered(request: HttpRequest) -> Visit:
    """The visit that a request is.

    Raises:
        ConfigurationError: ``TASKS`` has no backend of Stoker's.
    """
    aliases = tuple(own_backends()) or ("default",)
    wanted = request.GET.get("backend", aliases[0])
    return Visit(request, settings_for(wanted if wanted in aliases else aliases[0]), aliases)


def _refuse(visit: Visit, methods: tuple[str, ...], permission: str) -> None:
    """Raises Refusal for what no view has to look at."""
    request = visit.request
    if request.method not in methods:
        raise Refusal(405, f"This address takes {' and '.join(methods)}.")
    for given in (request.GET, request.POST):
        if any("\x00" in text for _, values in given.lists() for text in values):
            raise Refusal(400, "There is a NUL character in this, which no store takes.")
    if request.GET.get("backend", visit.alias) != visit.alias:
        raise Refusal(404, f"There is no backend {request.GET['backend']!r}.")
    if not visit.may(permission):
        raise Refusal(403, f"You need the permission {permission!r} for this.")


def _refused(visit: Visit, status: int, sentence: str) -> HttpResponse:
    context = {"sentence": sentence, "status": status}
    return rendered(visit, "stoker/dashboard/refused.html", context, status)


def _notice(request: HttpRequest) -> dict[str, Any] | None:
    try:
        text, is_bad, undo, fields = signing.loads(
            request.COOKIES[NOTICE], salt=NOTICE, max_age=NOTICE_SECONDS
        )
    except (KeyError, ValueError, signing.BadSignature):
        return None
    return {"text": text, "is_bad": is_bad, "undo": undo, "fields": fields}


def _way_back(visit: Visit) -> str:
    """Where the action was asked for, if that is here."""
    back = visit.request.POST.get("back", "")
    root = visit.at("overview").partition("?")[0]
    is_ours = url_has_allowed_host_and_scheme(back, allowed_hosts=None) and back.startswith(root)
    return back if is_ours else visit.at("overview")
