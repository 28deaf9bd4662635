"""What every request passes before and after its view: limits before, tidy answers after."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from ninja.parser import Parser

from stoker.api_settings import api_settings

from .problems import Refusal, problem

DEEPEST = 100
NO_TEXT = re.compile("[\x00\ud800-\udfff]")
METHODS_WITHOUT_BODY = ("GET", "HEAD", "OPTIONS", "TRACE")


class StrictParser(Parser):
    """JSON as the standard has it, and nothing in it that no database takes."""

    def parse_body(self, request: HttpRequest) -> Any:
        # Sent in chunks to an ASGI server, it does not say before how long it is.
        _refuse_larger(len(request.body))
        try:
            value = json.loads(request.body, parse_float=_finite, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise Refusal(400, f"The body is not JSON: {error}.") from error
        _refuse_what_no_store_takes(value)
        return value


def enclosed(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """The view, with what all have in common."""

    @wraps(view)
    def inside(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        try:
            refuse_unreadable(request)
            response = _as_get(view, request, *args, **kwargs)
        except Refusal as refusal:
            response = problem(refusal.status, refusal.detail, **refusal.more)
        if response.status_code == 405 and "Allow" in response.headers:
            allowed = response.headers["Allow"]
            response = problem(405, f"This address takes {allowed}.")
            response.headers["Allow"] = allowed
        response.headers["Cache-Control"] = "no-store"
        return response

    # Every call makes its own transactions, and says by itself who may do what.
    return transaction.non_atomic_requests(login_not_required(inside))


def refuse_unreadable(request: HttpRequest) -> None:
    """Raises Refusal for a request that no view has to look at."""
    if "\x00" in request.path or any(
        "\x00" in text for name, values in request.GET.lists() for text in (name, *values)
    ):
        raise Refusal(400, "The address has a NUL character in it, which no store takes.")
    if request.method in METHODS_WITHOUT_BODY:
        return
    length = request.META.get("CONTENT_LENGTH") or "0"
    _refuse_larger(int(length) if str(length).isdigit() else math.inf)
    if int(length) and request.content_type != "application/json":
        raise Refusal(415, "Send JSON, with Content-Type: application/json.")


def _refuse_larger(length: float) -> None:
    most = api_settings().max_body_bytes
    if length > most:
        raise Refusal(413, f"The request is larger than {most} bytes.")


def not_found(_request: HttpRequest, **_: Any) -> HttpResponse:
    return problem(404, "There is nothing at this address.")


def _as_get(
    view: Callable[..., HttpResponseBase], request: HttpRequest, *args: Any, **kwargs: Any
) -> HttpResponseBase:
    """HEAD is GET, without the content: servers leave that out."""
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
    """Raises Refusal for NUL characters and halves of surrogate pairs, wherever they are, and for
    what is nested too deeply to be read again."""
    left = [(value, 1)]
    while left:
        one, depth = left.pop()
        if depth > DEEPEST:
            raise Refusal(400, f"The body is nested deeper than {DEEPEST} levels.")
        if isinstance(one, str) and NO_TEXT.search(one):
            raise Refusal(
                400, "The body has a NUL character or half of one in it: no store takes that."
            )
        if isinstance(one, dict):
            left += [(part, depth + 1) for part in (*one.keys(), *one.values())]
        elif isinstance(one, list):
            left += [(part, depth + 1) for part in one]
