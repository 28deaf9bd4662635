"""``path("stoker/", include("stoker.api.urls"))``: the HTTP API and its OpenAPI document.

The ``tasks`` modules of the installed apps are imported, so that the exposed tasks are known. No
URL ends with a slash, so the dashboard can be mounted under the same prefix.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.middleware.csrf import get_token
from django.urls import URLPattern, path, re_path
from django.utils.html import format_html, json_script
from django.views.decorators.csrf import csrf_exempt
from ninja import NinjaAPI
from ninja.openapi.docs import Swagger

from stoker.setting_values import api_settings
from stoker.tasks.registry import import_tasks_or_log

from . import problems
from .access import SessionUser, StrictParser, TokenUser, enclosed, not_found
from .problems import MEDIA_TYPE, STRANGER, CallRefused, problem
from .views import (
    audit,
    bulk,
    clusters,
    dead_letters,
    health,
    jobs,
    logs,
    metrics,
    queues,
    schedules,
    workflows,
)

FILES = {
    "swagger-ui.css": "text/css; charset=utf-8",
    "swagger-ui-bundle.js": "text/javascript; charset=utf-8",
    "swagger-ui-init.js": "text/javascript; charset=utf-8",
}
"""The files of the documentation page -> their content types."""
PROBLEM = "#/components/schemas/Problem"


PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}: the HTTP API</title>
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body data-csrf-token="{token}" data-api-csrf="true">
{settings}
<div id="swagger-ui"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/swagger-ui-init.js"></script>
</body>
</html>
"""
"""HTML of the documentation page. It loads files only from URLs next to its own."""


def show_document(request: HttpRequest) -> HttpResponse:
    """Return the OpenAPI document as JSON."""
    refuse_strangers(request)
    prefix = request.path.removesuffix("openapi.json")
    return JsonResponse(document_of(api, prefix))


def show_page(request: HttpRequest) -> HttpResponse:
    """Return the documentation page."""
    if not api_settings().docs:
        return problem(404, "The documentation page is turned off: see DOCS of STOKER_API.")
    refuse_strangers(request)
    settings = {**Swagger.default_settings, "url": "openapi.json"}
    page = format_html(
        PAGE,
        title=api.title,
        token=get_token(request),
        settings=json_script(settings, "swagger-settings"),
    )
    return HttpResponse(page)


def show_file(_request: HttpRequest, name: str) -> HttpResponse:
    """Return a file of the documentation page, from the package django-ninja."""
    if not api_settings().docs or name not in FILES:
        return problem(404, "There is no such file.")
    content = files("ninja").joinpath("static", "ninja", name).read_bytes()
    response = HttpResponse(content, content_type=FILES[name])
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Cache-Control"] = "max-age=86400"
    return response


def refuse_strangers(request: HttpRequest) -> None:
    """Raise CallRefused for users who are not staff."""
    if request.method != "GET":
        raise CallRefused(405, "This URL accepts only GET.")
    user = SessionUser(())(request) or TokenUser(())(request)
    if user is None:
        raise CallRefused(401, STRANGER)
    if not getattr(user, "is_staff", False):  # a project's own model may not have it
        raise CallRefused(403, "The documentation is for staff.")


@lru_cache(maxsize=4)
def document_of(api: NinjaAPI, prefix: str) -> dict[str, Any]:
    """Return the OpenAPI document of the API that is mounted at this prefix. It is made once,
    because that takes half a second."""
    document: dict[str, Any] = api.get_openapi_schema(path_prefix=prefix)
    for methods in document["paths"].values():
        for operation in methods.values():
            for answer in operation["responses"].values():
                _name_problems(answer)
    return document


def _name_problems(answer: dict[str, Any]) -> None:
    """Set the media type ``application/problem+json`` for errors in the document."""
    content = answer.get("content", {})
    shape = content.get("application/json", {}).get("schema", {})
    if shape.get("$ref") == PROBLEM:
        content[MEDIA_TYPE] = content.pop("application/json")


api = NinjaAPI(
    title="Stoker",
    version=version("django-stoker"),
    description="Background jobs: enqueue them, inspect them, and handle those that failed.",
    openapi_url=None,
    docs_url=None,
    urls_namespace="stoker-api",
    parser=StrictParser(),
)
problems.install(api)
PARTS = (
    health, jobs, logs, queues, dead_letters, schedules, workflows, clusters, bulk, metrics, audit,
)  # fmt: skip
for part in PARTS:
    api.add_router("", part.routes)
AREAS = sorted({address.split("/")[1] for one in PARTS for address in one.routes.path_operations})
"""The first path segments of all URLs of the API."""

import_tasks_or_log()

app_name = "stoker-api"
urlpatterns = [
    path("openapi.json", enclosed(show_document), name="openapi"),
    path("docs", enclosed(show_page), name="docs"),
    path("docs/<str:name>", enclosed(show_file), name="docs-file"),
    *(
        URLPattern(one.pattern, enclosed(one.callback), one.default_args, one.name)
        for one in api.urls[0]
        if isinstance(one, URLPattern) and one.name != "api-root"
    ),
    # URLs that end with a slash are those of the dashboard.
    re_path(rf"^(?:{'|'.join(AREAS)})(?:/[\s\S]*)?(?<!/)\Z", enclosed(csrf_exempt(not_found))),
]
