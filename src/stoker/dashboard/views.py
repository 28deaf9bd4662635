"""Views of the dashboard: pages and operations, with a check of permissions.

A script keeps an open page up to date: it sends a digest of each part that it has, and receives
only the parts that differ.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.core import signing
from django.core.exceptions import ImproperlyConfigured
from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.template.loader import render_to_string
from django.urls import Resolver404, get_script_prefix, resolve
from django.views.decorators.csrf import csrf_protect

from stoker.brokers.outage import do_without_broker
from stoker.compat import TaskResultDoesNotExist
from stoker.conf import settings_for
from stoker.exceptions import ConfigurationError, StokerError
from stoker.models import BulkOperation
from stoker.operations import bulk
from stoker.operations.bulk_walk import State
from stoker.operations.operation import Done, Operation
from stoker.store.transactions import without_request_transaction
from stoker.tasks.decorator import own_backends
from stoker.values.marks import InvalidFilter
from stoker.values.pickles import nothing_unpickled
from stoker.values.text import shown_html

from .context import PAGES, SECTIONS, DashboardContext

POLICY = (
    "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)
NO_ANSWER = (OperationalError, InterfaceError)
SILENT = "The database does not answer. `manage.py stoker health` says more."
MISCONFIGURED = "The settings under TASKS are wrong. `manage.py check` says more."
NOBODY = (
    "The dashboard needs the user of each request. Add django.contrib.auth and "
    "django.contrib.sessions to INSTALLED_APPS, and SessionMiddleware and AuthenticationMiddleware "
    "to MIDDLEWARE."
)
NOTICE = "stoker_notice"
NOTICE_SECONDS = 120
LONGEST_START = 9
LONGEST_NOTICE = 800
"""Maximum number of characters of a message, because a cookie holds at most 4 KB."""


class PageRefused(Exception):
    """Raised to answer with an error page that shows the given sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


@dataclass(frozen=True, slots=True)
class PageContent:
    """A template with its context."""

    template: str
    """Name of the template, such as "jobs"."""
    context: dict[str, Any]


def page(
    permission: str,
) -> Callable[[Callable[..., PageContent]], Callable[..., HttpResponseBase]]:
    """Decorate a function as a view for users who have this permission."""

    def decorate(view: Callable[..., PageContent]) -> Callable[..., HttpResponseBase]:
        def answer(visit: DashboardContext, *args: Any, **kwargs: Any) -> HttpResponse:
            with nothing_unpickled(), do_without_broker() as outage:
                shown = view(visit, *args, **kwargs)
            context = {**shown.context, "outage": outage.sentence}
            return rendered(visit, f"stoker/dashboard/{shown.template}.html", context)

        return enclosed(wraps(view)(answer), ("GET", "HEAD"), permission)

    return decorate


def perform(
    operation: Operation,
    act: Callable[[DashboardContext, Operation], Done] | None = None,
) -> Callable[..., HttpResponseBase]:
    """Return the view that performs an operation and then shows the answer on the previous page.

    Args:
        act: Replaces ``perform_on_target`` for forms that do not name exactly one target.
    """

    def view(visit: DashboardContext) -> HttpResponse:
        done = (act or perform_on_target)(visit, operation)
        return answered(visit, operation, done, _way_back(visit))

    return enclosed(view, ("POST",), operation.permission)


def answered(
    visit: DashboardContext, operation: Operation, done: Done, back: str
) -> HttpResponseRedirect:
    """Redirect to the next page, which shows the answer to an operation and a button to undo it.

    Args:
        back: The next page, unless the operation enqueued a job or continues in the background.
    """
    to, row = visit.at("job", done.job_id) if done.job_id else back, done.value
    if isinstance(row, BulkOperation) and row.state == State.RUNNING and visit.may(bulk.VIEW):
        to = visit.at("bulk", row.pk)
    response = HttpResponseRedirect(to)
    undo = f"{operation.undo}-{operation.target}" if done.undo else ""
    notice = [done.sentence[:LONGEST_NOTICE], not done.is_good, undo, [*done.undo.items()]]
    response.set_cookie(
        NOTICE,
        signing.dumps(notice, salt=NOTICE, compress=True),
        max_age=NOTICE_SECONDS,
        httponly=True,
        samesite="Lax",
        secure=visit.request.is_secure(),
    )
    return response


def perform_on_target(visit: DashboardContext, operation: Operation) -> Done:
    """Perform an operation on the target that the form or its URL names."""
    given = {**visit.request.GET.dict(), **visit.request.POST.dict()}
    name = given.get(operation.target, "")
    if not name:
        raise PageRefused(400, f"The form names no {operation.target}.")
    options = {one: given.get(one, "") for one in operation.takes}
    return operation.attempt(visit.operator, name, **options)


def start_of(visit: DashboardContext) -> int:
    """Return the number of the page's first row, from the request. For lists that are paged by row
    number, because no index has their order."""
    after = visit.request.GET.get("after") or "0"
    if not (after.isdecimal() and after.isascii() and len(after) <= LONGEST_START):
        raise PageRefused(400, f"{after[:50]!r} is not the mark of a page of this list.")
    return int(after)


def rendered(
    visit: DashboardContext, template: str, context: dict[str, Any], status: int = 200
) -> HttpResponse:
    """Return a page, with the answer to the last operation. If a script asks, return only the
    changed parts."""
    is_whole = LIVE not in visit.request.headers
    notice = _notice(visit.request) if is_whole else None
    text = shown_html(
        render_to_string(
            template, {"visit": visit, "notice": notice, **context}, request=visit.request
        )
    )
    if not is_whole:
        return changes(visit.request, text, status)
    response = HttpResponse(text, status=status)
    if notice is not None:
        response.delete_cookie(NOTICE)
    return response


def enclosed(
    view: Callable[..., HttpResponseBase], methods: tuple[str, ...], permission: str
) -> Callable[..., HttpResponseBase]:
    @wraps(view)
    def inside(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        try:
            response = _answered(view, methods, permission, request, *args, **kwargs)
        except NO_ANSWER:  # for example the users' database is unreachable
            response = unavailable(SILENT)
        except ConfigurationError as error:
            response = misconfigured(request, error)
        response.headers.setdefault("Content-Security-Policy", POLICY)
        response.headers.setdefault("Referrer-Policy", "same-origin")
        response.headers["Cache-Control"] = "no-store"
        return response

    # Every operation makes its own transactions. The permission is checked here, not by the site.
    return without_request_transaction(login_not_required(csrf_protect(inside)))


def unavailable(sentence: str) -> HttpResponse:
    return HttpResponse(sentence, status=503, content_type="text/plain; charset=utf-8")


def misconfigured(request: HttpRequest, error: ConfigurationError) -> HttpResponse:
    """Name the wrong option to users who may see pages. Without settings there is no page."""
    user = getattr(request, "user", None)
    may_see = user is not None and any(user.has_perm(one.permission) for one in SECTIONS)
    return unavailable(str(error) if may_see else MISCONFIGURED)


def _answered(
    view: Callable[..., HttpResponseBase],
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
    if visit.page == "overview" and not visit.may(permission) and visit.sections:
        return HttpResponseRedirect(visit.sections[0]["address"])
    try:
        _refuse(visit, methods, permission)
        return view(visit, *args, **kwargs)
    except PageRefused as refusal:
        response = _refused(visit, refusal.status, refusal.sentence)
        if refusal.status == 405:
            response.headers["Allow"] = ", ".join(methods)
        return response
    except (TaskResultDoesNotExist, LookupError) as error:
        if not isinstance(error, TaskResultDoesNotExist | StokerError):
            raise
        return _refused(visit, 404, str(error))
    except StokerError as error:
        return _refused(visit, 503, str(error))
    except InvalidFilter as error:
        return _refused(visit, 400, str(error))


def _to_login(visit: DashboardContext) -> HttpResponse:
    # Imported here, because it fails if django.contrib.auth is not installed.
    from django.contrib.auth.views import redirect_to_login

    request = visit.request
    return redirect_to_login(
        request.get_full_path() if request.method == "GET" else visit.at("overview")
    )


def entered(request: HttpRequest) -> DashboardContext:
    """Return the dashboard context of a request.

    Raises:
        ConfigurationError: ``TASKS`` has no backend of Stoker's, or one of its options is wrong.
    """
    aliases = tuple(own_backends()) or ("default",)
    wanted = request.GET.get("backend", aliases[0])
    return DashboardContext(
        request, settings_for(wanted if wanted in aliases else aliases[0]), aliases
    )


def _refuse(visit: DashboardContext, methods: tuple[str, ...], permission: str) -> None:
    """Raise PageRefused for a wrong method, an unknown backend, an invalid character or a missing
    permission."""
    request = visit.request
    if request.method not in methods:
        raise PageRefused(405, f"This URL accepts only {' and '.join(methods)}.")
    for given in (request.GET, request.POST):
        if any("\x00" in text for _, values in given.lists() for text in values):
            raise PageRefused(
                400, "The request contains a NUL character, which databases do not accept."
            )
    if request.GET.get("backend", visit.alias) != visit.alias:
        raise PageRefused(404, f"There is no backend {request.GET['backend']!r}.")
    require(visit, permission)


def require(visit: DashboardContext, permission: str) -> None:
    """Raise PageRefused if the user lacks the permission."""
    if not visit.may(permission):
        raise PageRefused(403, f"You need the permission {permission!r} for this.")


def _refused(visit: DashboardContext, status: int, sentence: str) -> HttpResponse:
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


def _way_back(visit: DashboardContext) -> str:
    """Return the URL of the page that contained the form, if it is a page of the dashboard."""
    back = visit.request.POST.get("back", "")
    own = visit.request.resolver_match
    path, prefix = back.partition("?")[0], get_script_prefix()
    if not path.startswith(prefix):
        return visit.at("overview")
    try:
        # A path with "..", which browsers shorten, matches no URL.
        match = resolve(f"/{path.removeprefix(prefix)}")
    except Resolver404:
        match = None
    if match is None or own is None or match.url_name not in PAGES:
        return visit.at("overview")
    return back if match.namespace == own.namespace else visit.at("overview")


LIVE = "X-Stoker-Live"
"""The request header with the digests: ``found=0a1b2c3d,states=4e5f6a7b``."""
OPENING = re.compile(r'<(\w+) [^>]*?\bid="([\w-]+)"[^>]*?\bdata-live\b[^>]*>')
# Relative times and CSRF tokens do not count as changes.
AGES = re.compile(r"(<time [^>]*>)[^<]*")
TOKENS = re.compile(r'(name="csrfmiddlewaretoken" value=)"[^"]*"')
NEW = re.compile(r' data-new="(\d+)"')
"""Finds the number of rows that are newer than the first row that the script shows."""
DIGITS = 8
LEAST_BYTES = 500
"""Smaller answers are not compressed."""


def changes(request: HttpRequest, page: str, status: int) -> HttpResponse:
    """Return the parts of the page that the script does not have, as JSON.

    ``parts`` contains the digest of each part, and its HTML if the script has another version.
    ``new`` is the number of newer rows; null = the server does not count them.
    """
    known = dict(one.split("=", 1) for one in request.headers[LIVE].split(",") if "=" in one)
    parts = {}
    for part_id, part in parts_of(page).items():
        digest = digest_of(part)
        parts[part_id] = [digest] if known.get(part_id) == digest else [digest, part]
    new = NEW.search(page)
    body = json.dumps({"parts": parts, "new": int(new[1]) if new else None}).encode()
    response = HttpResponse(content_type="application/json", status=status)
    if len(body) > LEAST_BYTES and "gzip" in request.headers.get("Accept-Encoding", ""):
        # CSRF tokens are masked differently in each response, so its size does not reveal them.
        body = gzip.compress(body, 6)
        response.headers["Content-Encoding"] = "gzip"
    response.content = body
    response.headers["Content-Length"] = str(len(body))
    response.headers["Vary"] = "Accept-Encoding"
    return response


def parts_of(page: str) -> dict[str, str]:
    """Return id -> element, for the elements of a page that are marked with ``data-live``."""
    found = {}
    for opening in OPENING.finditer(page):
        name, part_id = opening.groups()
        depth, end = 0, len(page)
        for tag in re.compile(rf"<(/?){name}\b").finditer(page, opening.start()):
            depth += -1 if tag[1] else 1
            if depth == 0:
                end = page.index(">", tag.end()) + 1
                break
        found[part_id] = page[opening.start() : end]
    return found


def digest_of(part: str) -> str:
    """Return a digest of the visible content of one part of a page."""
    text = NEW.sub("", TOKENS.sub(r"\1", AGES.sub(r"\1", part)))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]
