"""Errors as ``application/problem+json`` (RFC 9457)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any

from django.conf import settings as django_settings
from django.core.exceptions import RequestDataTooBig
from django.core.signals import got_request_exception
from django.db import DatabaseError, DataError, InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse, UnreadablePostError
from django.utils.log import log_response
from ninja import NinjaAPI, Schema
from ninja.errors import AuthenticationError, HttpError, ValidationError
from pydantic import ConfigDict

from stoker.compat import InvalidTask
from stoker.exceptions import (
    BrokerError,
    DuplicateJob,
    InvalidSchedule,
    InvalidTaskOption,
    NotMigrated,
    NotSerializable,
    PackageTooLarge,
    UnknownTask,
    UnreadablePackage,
)
from stoker.operations.operation import NOT_FOUND
from stoker.setting_values import api_settings
from stoker.values.marks import InvalidMark
from stoker.values.text import first_line_of

MEDIA_TYPE = "application/problem+json"
STRANGER = "Sign in, or send Authorization: Bearer TOKEN."


class FieldProblem(Schema):
    """An error in one part of a request."""

    where: list[str | int]
    """The path of the part: ``["body", "limit"]``."""
    problem: str


class Problem(Schema):
    """An error response. ``type`` is always "about:blank": ``status`` and ``detail`` describe the
    error."""

    model_config = ConfigDict(extra="allow")

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    errors: list[FieldProblem] = []


class CallRefused(Exception):
    """A call that is refused.

    Args:
        status: The HTTP status.
        detail: One sentence.
        more: Further members of the problem.
    """

    def __init__(self, status: int, detail: str, **more: Any) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.more = more


def problem(status: int, detail: str, **more: Any) -> HttpResponse:
    """Return the response for a problem."""
    content = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        **more,
    }
    response = HttpResponse(
        json.dumps(content, default=str), status=status, content_type=MEDIA_TYPE
    )
    if status == HTTPStatus.UNAUTHORIZED:
        scheme = "Cookie" if api_settings().token_user is None else "Bearer"
        response.headers["WWW-Authenticate"] = f'{scheme} realm="stoker"'
    return response


STATUSES: dict[type[Exception], int] = {
    **dict.fromkeys((*NOT_FOUND, UnknownTask), 404),
    DuplicateJob: 409,
    PackageTooLarge: 413,
    NotSerializable: 422,
    InvalidSchedule: 422,
    InvalidTask: 422,
    InvalidTaskOption: 422,
    UnreadablePackage: 422,
}
"""Errors whose message is sent to the caller, and their HTTP status."""

SENTENCES: dict[type[Exception], tuple[int, str]] = {
    Http404: (404, "There is nothing at this address."),
    RequestDataTooBig: (413, "The request is larger than this server reads."),
    UnreadablePostError: (400, "The request ended before it was complete."),
    DataError: (422, "The store does not accept one of these values."),
    NotMigrated: (503, "Stoker's tables are missing, or not up to date: run manage.py migrate."),
    OperationalError: (503, "The store is unreachable: try again later."),
    InterfaceError: (503, "The store is unreachable: try again later."),
}
"""Error class -> HTTP status and message, for errors whose own message is not sent."""


def install(api: NinjaAPI) -> None:
    """Register handlers that return all errors of this API as problems."""
    for kind, status in STATUSES.items():
        api.add_exception_handler(kind, _own_sentence(status))
    for kind, (status, sentence) in SENTENCES.items():
        api.add_exception_handler(kind, _sentence(status, sentence))
    api.add_exception_handler(BrokerError, _unreachable)
    api.add_exception_handler(InvalidMark, _invalid_mark)
    api.add_exception_handler(CallRefused, _refused)
    api.add_exception_handler(HttpError, _http_error)
    api.add_exception_handler(ValidationError, _invalid)
    api.add_exception_handler(Exception, _unexpected)


Handler = Callable[[HttpRequest, Any], HttpResponse]


def _own_sentence(status: int) -> Handler:
    return lambda _request, error: problem(status, first_line_of(error))


def _sentence(status: int, sentence: str) -> Handler:
    return lambda _request, _error: problem(status, sentence)


def _unreachable(_request: HttpRequest, error: Any) -> HttpResponse:
    """Say whether the broker or the store is unreachable. The store is a database, so its errors
    are caused by those of Django."""
    cause = error.__cause__
    is_broker = cause is not None and not isinstance(cause, DatabaseError | InterfaceError)
    name = "broker" if is_broker else "store"
    return problem(503, f"The {name} is unreachable: try again later.")


def _invalid_mark(_request: HttpRequest, error: Any) -> HttpResponse:
    return problem(422, f"after: {error}.")


def _refused(_request: HttpRequest, error: Any) -> HttpResponse:
    return problem(error.status, error.detail, **error.more)


def _http_error(_request: HttpRequest, error: Any) -> HttpResponse:
    if isinstance(error, AuthenticationError):
        return problem(401, STRANGER)
    if isinstance(error.__cause__, CallRefused):
        return _refused(_request, error.__cause__)
    if isinstance(error.__cause__, RequestDataTooBig):
        return problem(*SENTENCES[RequestDataTooBig])
    return problem(error.status_code, str(error))


def _invalid(_request: HttpRequest, error: Any) -> HttpResponse:
    found = [
        {"where": [*map(_plain, _without_its_name(one["loc"]))], "problem": one["msg"]}
        for one in error.errors
    ]
    where = ".".join(str(part) for part in found[0]["where"]) if found else ""
    detail = f"{where}: {found[0]['problem']}" if found else "The request is not valid."
    return problem(422, detail, errors=found)


def _unexpected(request: HttpRequest, error: Any) -> HttpResponse:
    """Log an unexpected error and send Django's signal for it. With DEBUG, let Django show it."""
    if django_settings.DEBUG:
        raise error
    got_request_exception.send(sender=None, request=request)
    response = problem(500, "Something went wrong on the server, and was logged.")
    log_response(
        "%s: %s",
        response.reason_phrase,
        request.path,
        response=response,
        request=request,
        exception=error,
    )
    return response


def _without_its_name(place: Sequence[Any]) -> Sequence[Any]:
    """Remove the name of the body parameter from a path, because the path begins with "body"
    already."""
    return place[1:] if tuple(place[:2]) == ("body", "body") else place


def _plain(part: Any) -> str | int:
    return part if isinstance(part, int) else str(part)
