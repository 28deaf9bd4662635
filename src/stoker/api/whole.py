"""The API as a whole."""

from __future__ import annotations

from importlib.metadata import version

from ninja import NinjaAPI

from . import clusters, dead_letters, health, jobs, problems, queues, schedules
from .document import Document
from .door import StrictParser

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
