"""Requests that schemathesis generates from the OpenAPI document, valid and invalid ones: no answer
may be a server error, and each must conform to the document.

STOKER_TEST_SCHEMA_EXAMPLES sets the number of requests of each kind.
"""

import os
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import schemathesis
from django.contrib.auth.models import User
from django.core.handlers.wsgi import WSGIHandler
from django.core.signals import request_finished, request_started
from django.db import close_old_connections
from hypothesis import strategies
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

from stoker import every, schedules
from stoker.api.urls import api, document_of
from stoker.models import Cluster, DeadLetter, PausedQueue
from stoker.store.written import DatabaseNow

from tests.api.test_operating import sign_on
from tests.app import frail
from tests.app.tasks import add
from tests.integration.letters import dead

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

EXAMPLES = int(os.environ.get("STOKER_TEST_SCHEMA_EXAMPLES", "6"))
TOKEN = {"Authorization": "Bearer token of anna"}
CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
]


@pytest.fixture(scope="module")
def schema() -> Any:
    """Load the document, and the application that answers."""
    loaded = schemathesis.openapi.from_dict(document_of(api, "/stoker/"))
    loaded.app = WSGIHandler()
    return loaded


@pytest.fixture
def _may_do_everything(settings: Any) -> Iterator[None]:
    User.objects.create_superuser("anna", is_staff=True)
    settings.STOKER_API = {"TOKEN_USER": "tests.api.test_permissions.user_of_token"}
    signals = (request_started, request_finished)
    for signal in signals:  # otherwise each request would open its own connection
        signal.disconnect(close_old_connections)
    yield
    for signal in signals:
        signal.connect(close_old_connections)
    frail.broken.clear()


class Stock:
    """Existing objects, and values with a meaning."""

    def __init__(self) -> None:
        self.known: dict[str, list[str]] = {
            "schedule": ["nightly", "on/off"],
            "queue": ["default", "mail", "a/b"],
            "task": ["numbers.add", "loose", "once", "with.context"],
        }

    def fill(self) -> None:
        """Create objects again that a call may have used up."""
        if not DeadLetter.objects.filter(state="open").exists():
            PausedQueue.objects.all().delete()
            letters = [dead(frail.charge, f"order {number}") for number in range(2)]
            self.known["letter_id"] = [str(one.pk) for one in letters]
            self.known["job_id"] = [add.enqueue(1, 2).id, str(letters[0].job_id)]
        for name in self.known["schedule"]:
            schedules.upsert(name, add, every(minutes=5, args=[1, 2]))
        if not Cluster.objects.filter(request="").exists():
            Cluster.objects.all().delete()
            self.known["cluster_id"] = [str(sign_on().pk)]


@pytest.mark.usefixtures("_may_do_everything")
@pytest.mark.parametrize("mode", list(GenerationMode), ids=["valid", "invalid"])
def test_generated_requests_never_cause_a_server_error(
    mode: GenerationMode, schema: Any, seed: int
) -> None:
    stock = Stock()
    tried = 0
    for found in schema.get_all_operations():
        operation = found.ok()
        takes_anything = not list(operation.iter_parameters()) and not operation.body
        if mode is GenerationMode.NEGATIVE and takes_anything:
            continue  # nothing can be invalid there
        stock.fill()
        _try(operation, mode, stock.known, seed)
        tried += 1
    assert tried > 20


def _try(operation: Any, mode: GenerationMode, known: dict[str, list[str]], seed: int) -> None:
    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode), data=strategies.data())
    def call(case: Any, data: strategies.DataObject) -> None:
        if mode is GenerationMode.POSITIVE:
            _mean_something(case, known, data)
        else:  # an empty list or object in the query is not sent, which leaves a valid request
            hypothesis.assume(all(value not in ([], {}) for value in (case.query or {}).values()))
        Cluster.objects.update(heartbeat_us=DatabaseNow())
        case.call_and_validate(headers=TOKEN, checks=CHECKS)

    call()


def _mean_something(case: Any, known: dict[str, list[str]], data: strategies.DataObject) -> None:
    """Replace generated values by existing ones in half of the requests."""
    for name in case.path_parameters or {}:
        if name in known and data.draw(strategies.booleans()):
            case.path_parameters[name] = data.draw(strategies.sampled_from(known[name]))
    if isinstance(case.body, dict) and "task" in case.body and data.draw(strategies.booleans()):
        case.body["task"] = data.draw(strategies.sampled_from(known["task"]))
    if case.query and case.query.get("backend") is not None and data.draw(strategies.booleans()):
        case.query["backend"] = "default"
