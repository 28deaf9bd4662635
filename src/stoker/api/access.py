"""Access to the API: authentication by session or token, and the permissions of each route."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from enum import Enum
from functools import wraps
from types import MappingProxyType
from typing import Any, TypeVar

from django.conf import settings as django_settings
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import register_converter
from django.urls.converters import PathConverter
from django.views.decorators.debug import sensitive_variables
from ninja import Router
from ninja.parser import Parser
from ninja.security.base import AuthBase
from ninja.utils import check_csrf

from stoker.dead_letters.service import Fate
from stoker.operations.details import REVEAL
from stoker.operations.operation import Done, Operation, Operator
from stoker.setting_values import api_settings
from stoker.store.transactions import without_request_transaction

from .problems import CallRefused, Problem, problem
from .values import settings_of

DEEPEST = 100
NO_TEXT = re.compile("[\x00\ud800-\udfff]")
STATUS_OF_FATE = {Fate.GONE.value: 404, Fate.REFUSED.value: 422}
METHODS_WITHOUT_BODY = ("GET", "HEAD", "OPTIONS", "TRACE")


class StrictParser(Parser):
    """Parses strict JSON, and refuses characters that no database stores."""

    def parse_body(self, request: HttpRequest) -> Any:
        # A chunked request has no Content-Length, so the length is checked here.
        _refuse_larger(len(request.body))
        try:
            value = json.loads(request.body, parse_float=_finite, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise CallRefused(400, f"The body is not JSON: {error}.") from error
        _refuse_what_no_store_takes(value)
        return value


def enclosed(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """Return the view with the checks and headers that all views of the API have."""

    @wraps(view)
    def inside(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        try:
            refuse_unreadable(request)
            response = _as_get(view, request, *args, **kwargs)
        except CallRefused as refusal:
            response = problem(refusal.status, refusal.detail, **refusal.more)
        if response.status_code == 405 and "Allow" in response.headers:
            allowed = response.headers["Allow"]
            response = problem(405, f"This URL accepts only {allowed}.")
            response.headers["Allow"] = allowed
        response.headers["Cache-Control"] = "no-store"
        return response

    # Every call makes its own transactions and checks permissions itself.
    return without_request_transaction(login_not_required(inside))


def refuse_unreadable(request: HttpRequest) -> None:
    """Raise CallRefused for NUL characters, a wrong content type, or a too large body."""
    if "\x00" in request.path or any(
        "\x00" in text for name, values in request.GET.lists() for text in (name, *values)
    ):
        raise CallRefused(
            400, "The address contains a NUL character, which databases do not accept."
        )
    if request.method in METHODS_WITHOUT_BODY:
        return
    length = request.META.get("CONTENT_LENGTH") or "0"
    _refuse_larger(int(length) if str(length).isdigit() else math.inf)
    if int(length) and request.content_type != "application/json":
        raise CallRefused(415, "Send JSON, with Content-Type: application/json.")


def _refuse_larger(length: float) -> None:
    most = api_settings().max_body_bytes
    if length > most:
        raise CallRefused(413, f"The request is larger than {most} bytes.")


def not_found(_request: HttpRequest, **_: Any) -> HttpResponse:
    return problem(404, "There is nothing at this address.")


def _as_get(
    view: Callable[..., HttpResponseBase], request: HttpRequest, *args: Any, **kwargs: Any
) -> HttpResponseBase:
    """Call the GET view for a HEAD request. The server leaves out the content."""
    if request.method != "HEAD":
        return view(request, *args, **kwargs)
    request.method = "GET"
    try:
        return view(request, *args, **kwargs)
    finally:
        request.method = "HEAD"


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is too large a number")
    return number


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _refuse_what_no_store_takes(value: Any) -> None:
    """Raise CallRefused for NUL characters, halves of surrogate pairs, and too deep nesting."""
    left = [(value, 1)]
    while left:
        one, depth = left.pop()
        if depth > DEEPEST:
            raise CallRefused(400, f"The body is nested deeper than {DEEPEST} levels.")
        if isinstance(one, str) and NO_TEXT.search(one):
            raise CallRefused(
                400,
                "The body contains a NUL character or half of a surrogate pair, which databases do "
                "not accept.",
            )
        if isinstance(one, dict):
            left += [(part, depth + 1) for part in (*one.keys(), *one.values())]
        elif isinstance(one, list):
            left += [(part, depth + 1) for part in one]


class SessionUser(AuthBase):
    """Authentication by session. Unsafe methods need the CSRF token in the header X-CSRFToken."""

    openapi_type = "apiKey"
    openapi_in = "cookie"
    openapi_name = django_settings.SESSION_COOKIE_NAME
    openapi_description = "Signed in to the site; unsafe methods need the header X-CSRFToken."

    def __init__(self, permissions: Sequence[str]) -> None:
        super().__init__()
        self.permissions = tuple(permissions)

    def __call__(self, request: HttpRequest) -> Any:
        """Return the user; None = not signed in.

        Raises:
            CallRefused: The CSRF token or a permission is missing.
        """
        if "Authorization" in request.headers or not api_settings().session:
            return None
        user = getattr(request, "user", None)
        if user is None or not user.is_authenticated or not user.is_active:
            return None
        if check_csrf(request) is not None:
            raise CallRefused(403, "The CSRF token is missing or wrong: send it as X-CSRFToken.")
        return permitted(user, self.permissions)


class TokenUser(AuthBase):
    """Authentication by token: ``TOKEN_USER`` of ``STOKER_API`` finds the user."""

    openapi_type = "http"
    openapi_scheme = "bearer"

    def __init__(self, permissions: Sequence[str]) -> None:
        super().__init__()
        self.permissions = tuple(permissions)

    @sensitive_variables("token")
    def __call__(self, request: HttpRequest) -> Any:
        """Return the user; None = the token is unknown.

        Raises:
            CallRefused: A permission is missing.
        """
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            return None
        user = api_settings().find_user_of(token.strip())
        if user is None or not user.is_authenticated or not user.is_active:
            return None
        return permitted(user, self.permissions)


def permitted(user: Any, permissions: Sequence[str]) -> Any:
    """Return the user if it has all permissions.

    Raises:
        CallRefused: the user lacks one of the permissions.
    """
    for permission in permissions:
        if not user.has_perm(permission):
            raise CallRefused(403, f"You need the permission {permission!r} for this.")
    return user


def operator_of(request: HttpRequest, backend: str | None, because: str = "") -> Operator:
    """Return the caller as an operator, for the history."""
    name = str(request.auth.get_username())[:150]  # type: ignore[attr-defined] # ninja sets it
    return Operator(settings_of(backend), name, because)


def may_reveal(request: HttpRequest) -> bool:
    """Return whether the caller may see hidden arguments."""
    return bool(request.auth.has_perm(REVEAL))  # type: ignore[attr-defined] # ninja sets it


def perform(operation: Operation, operator: Operator, name: Any, **options: Any) -> Done:
    """Perform an operation.

    Raises:
        CallRefused: The operation was refused, and nothing was changed.
    """
    done = operation.perform(operator, name, **options)
    if not done.is_good:
        status = STATUS_OF_FATE.get(done.facts.get("fate", ""), 409)
        raise CallRefused(status, done.sentence, **done.facts)
    return done


class NameConverter(PathConverter):
    """A name at the end of a URL. It may contain slashes, but not end with one: URLs that end with
    a slash are those of the dashboard."""

    regex = r".*[^/]"


register_converter(NameConverter, "stoker_name")

View = TypeVar("View", bound=Callable[..., Any])

PROBLEMS = (400, 401, 403, 404, 422, 503)
"""Statuses of problems that every call may return."""
PROBLEMS_OF_BODIES = (413, 415)
PROBLEMS_OF_OPEN = (400, 404, 422)


class Open(Enum):
    """Used instead of permissions, for routes without authentication."""

    TO_ALL = "to all"
    """No authentication, for health probes of hosting platforms."""


def example_of_body(example: Any) -> dict[str, Any]:
    """Return the part of the OpenAPI document that shows an example of a request."""
    return {"requestBody": {"content": {"application/json": {"example": example}}}}


class Routes(Router):
    """The routes of one kind of object. Every route declares its ``permissions``."""

    def show(self, path: str, permission: str, shape: Any) -> Callable[[View], View]:
        """Declare a route that only reads."""
        return self.route("GET", path, permissions=(permission,), answers={200: shape})

    def export(
        self, path: str, permission: str, types: Mapping[str, str]
    ) -> Callable[[View], View]:
        """Declare a route that returns a file.

        Args:
            types: The formats of the file -> their content types.
        """
        text = {"schema": {"type": "string"}}
        content = {kind.partition(";")[0]: text for kind in types.values()}
        more = {"responses": {200: {"description": "The file.", "content": content}}}
        return self.route("GET", path, permissions=(permission,), answers={200: None}, extra=more)

    def change(
        self,
        path: str,
        operation: Operation | str,
        shape: Any,
        *,
        may_conflict: bool = False,
        example: Any = None,
    ) -> Callable[[View], View]:
        """Declare a route that performs an operation; 409 = nothing was changed.

        Args:
            operation: The operation; or a permission, if the route is not one of the operations.
        """
        needed = operation if isinstance(operation, str) else operation.permission
        answers = {200: shape, 409: ...} if may_conflict else {200: shape}
        more = {} if example is None else example_of_body(example)
        return self.route("POST", path, permissions=(needed,), answers=answers, extra=more)

    def route(
        self,
        method: str,
        path: str,
        *,
        permissions: tuple[str, ...] | Open,
        answers: dict[int, Any],
        extra: Mapping[str, Any] = MappingProxyType({}),
    ) -> Callable[[View], View]:
        """Declare a route.

        Args:
            permissions: The required permissions, such as ``stoker.view_job``.
            answers: Status -> shape; ``...`` = a problem.
            extra: More about the operation, for the OpenAPI document.
        """
        is_open = isinstance(permissions, Open)
        needed: tuple[str, ...] = () if isinstance(permissions, Open) else permissions
        if not is_open and not needed:
            raise ValueError(f"{method} {path} names no permission")
        problems: tuple[int, ...] = PROBLEMS_OF_OPEN if is_open else PROBLEMS
        if method != "GET":
            problems += PROBLEMS_OF_BODIES

        def declare(view: View) -> View:
            self.add_api_operation(
                path,
                [method],
                view,
                auth=None if is_open else [SessionUser(needed), TokenUser(needed)],
                response=dict.fromkeys(problems, Problem)
                | {status: Problem if one is ... else one for status, one in answers.items()},
                operation_id=view.__name__,
                url_name=view.__name__,
                openapi_extra={"x-permissions": list(needed), **extra},
            )
            if not is_open:
                _refuse_unknown_parameters(self.path_operations[path].operations[-1])
            return view

        return declare


def _refuse_unknown_parameters(operation: Any) -> None:
    """Make an operation refuse query parameters that it does not declare.

    Otherwise a misspelt filter would match everything. Routes that need no permission accept any
    parameter, because load balancers add their own to the URLs of probes.
    """
    call = operation.view_func
    known = [
        name
        for model in operation.models
        if model.__ninja_param_source__ == "query"
        for name in model.__ninja_flatten_map__
    ]

    @wraps(call)
    def checked(request: HttpRequest, **values: Any) -> Any:
        for name in request.GET:
            if name not in known:
                raise CallRefused(422, _unknown_parameter(name, known))
        return call(request, **values)

    operation.view_func = checked


def _unknown_parameter(name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name.lower(), known, n=1)
    advice = f"did you mean {near[0]}?" if near else f"it takes {', '.join(known) or 'none'}."
    return f"This address has no query parameter {name[:100]!r}: {advice}"
