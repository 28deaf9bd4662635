"""The HTTP API as a whole, and its OpenAPI document."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from ninja import NinjaAPI
from ninja.openapi.docs import Swagger

from stoker.setting_values import api_settings

from . import problems
from .access import SessionUser, StrictParser, TokenUser
from .problems import MEDIA_TYPE, Refusal, problem
from .views import clusters, dead_letters, health, jobs, queues, schedules

PROBLEM = "#/components/schemas/Problem"


class Page(Swagger):
    """Finds the document beside itself, wherever both are."""

    def get_openapi_url(self, api: NinjaAPI, path_params: dict[str, Any]) -> str:
        return "openapi.json"


class Document:
    """Two views of one API."""

    def __init__(self, api: NinjaAPI) -> None:
        self._api = api
        self._page = Page()

    def show(self, request: HttpRequest) -> HttpResponse:
        """The document."""
        refuse_strangers(request)
        prefix = request.path.removesuffix("openapi.json")
        return JsonResponse(document_of(self._api, prefix))

    def show_page(self, request: HttpRequest) -> HttpResponse:
        """The page."""
        if not api_settings().docs:
            return problem(404, "There is no page of documentation: see DOCS of STOKER_API.")
        refuse_strangers(request)
        return self._page.render_page(request, self._api)


def refuse_strangers(request: HttpRequest) -> None:
    """Raises Refusal for whoever is not of the staff."""
    if request.method != "GET":
        raise Refusal(405, "This address takes GET.")
    user = SessionUser(())(request) or TokenUser(())(request)
    if user is None:
        raise Refusal(401, "Say who you are: sign in, or send Authorization: Bearer TOKEN.")
    if not user.is_staff:
        raise Refusal(403, "The documentation is for staff.")


def document_of(api: NinjaAPI, prefix: str) -> dict[str, Any]:
    """The OpenAPI document of the API at this address."""
    document: dict[str, Any] = api.get_openapi_schema(path_prefix=prefix)
    for methods in document["paths"].values():
        for operation in methods.values():
            for answer in operation["responses"].values():
                _name_problems(answer)
    return document


def _name_problems(answer: dict[str, Any]) -> None:
    """Errors are of a media type of their own."""
    content = answer.get("content", {})
    shape = content.get("application/json", {}).get("schema", {})
    if shape.get("$ref") == PROBLEM:
        content[MEDIA_TYPE] = content.pop("application/json")


AREAS = ("health", "status", "tasks", "jobs", "queues", "dead-letters", "schedules", "clusters")
"""The first words of all addresses."""

api = NinjaAPI(
    title="Stoker",
    version=version("django-stoker"),
    description="Background jobs: enqueue them, see them, and see to those that failed.",
    openapi_url=None,
    docs_url=None,
    urls_namespace="stoker-api",
    parser=StrictParser(),
)
problems.install(api)
for part in (health, jobs, queues, dead_letters, schedules, clusters):
    api.add_router("", part.routes)
document = Document(api)
