"""Errors: each is answered as application/problem+json, and an invalid request reaches no store."""

import logging
import re
import uuid
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from django.db import DataError, OperationalError, connection
from django.http import HttpResponse
from django.test import Client
from pydantic.fields import FieldInfo

from stoker.api import filters, values
from stoker.api.access import enclosed
from stoker.api.urls import api, document_of
from stoker.exceptions import BrokerUnavailable
from stoker.models import Job

from tests.api.conftest import PREFIX, Caller
from tests.api.test_permissions import TABLE

pytestmark = pytest.mark.django_db

ADD = '{"task": "numbers.add", "args": [%s]}'


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        ("", 422, "Field required"),
        ("{", 400, "not JSON"),
        ("null", 422, "valid dictionary"),
        ("[]", 422, "valid dictionary"),
        ('"x"', 422, "valid dictionary"),
        ("\x00", 400, "not JSON"),
        ('{"task": NaN}', 400, "NaN is not JSON"),
        (ADD % "1e999", 400, "too large a number"),
        (ADD % ("9" * 5000), 400, "not JSON"),
        (ADD % '"\\u0000"', 400, "NUL"),
        (ADD % '"\\ud800"', 400, "NUL character or half"),
        ('{"task": "loose", "kwargs": {"a\\u0000": 1}}', 400, "NUL"),
        ("[" * 100_000, 400, "not JSON"),
        (ADD % ("[" * 90 + "]" * 90), 422, "valid integer"),
        ('{"task": "loose", "args": ' + "[" * 100 + "]" * 100 + "}", 400, "deeper than 100"),
        ('{"task": "numbers.add", "args": {}}', 422, "body.args"),
        ('{"task": "numbers.add", "args": [1], "priority": 1e2}', 422, "body.priority"),
        ('{"task": "numbers.add", "args": [1], "priority": 101}', 422, "less than or equal"),
        ('{"task": "numbers.add", "args": [1], "run_after": 5}', 422, "write a time"),
        ('{"task": "numbers.add", "args": [1], "run_after": "5"}', 422, "write a time"),
        (
            '{"task": "numbers.add", "args": [1], "run_after": "0001-01-01T00:00:00+23:59"}',
            422,
            "between the years",
        ),
        ('{"task": "numbers.add", "args": [1], "run_after_seconds": 1e300}', 422, "less than"),
        ('{"task": "numbers.add", "args": [1], "timeout": 5}', 422, "Extra inputs"),
        ('{"task": "numbers.add", "args": [1], "queue": ""}', 422, "body.queue"),
        ('{"task": "' + "x" * 300 + '"}', 422, "body.task"),
    ],
)
def test_invalid_body_is_refused(body: str, status: int, told: str, anna: Caller) -> None:
    problem = anna.post("jobs", body, status)
    assert told in problem["detail"]
    assert (problem["type"], problem["status"]) == ("about:blank", status)
    assert not Job.objects.exists()


def test_body_that_is_not_text_gives_400(anna: Caller) -> None:
    response = anna.client.generic(
        "POST", f"{PREFIX}jobs", data=b"\xff\xfe{", content_type="application/json"
    )
    assert response.status_code == 400


def test_every_wrong_field_is_listed(anna: Caller) -> None:
    problem = anna.post("jobs", {"task": 1, "priority": "x"}, 422)
    assert [one["where"] for one in problem["errors"]] == [["body", "task"], ["body", "priority"]]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "", "x"])
def test_other_content_types_give_415(kind: str, anna: Caller) -> None:
    response = anna.call("POST", "jobs", {"task": "numbers.add", "args": [1]}, content_type=kind)
    assert response.status_code == 415


def test_too_large_request_gives_413(anna: Caller, settings: Any) -> None:
    settings.STOKER_API = {"MAX_BODY_BYTES": 2000}
    assert "2000 bytes" in anna.post("jobs", ADD % f'"{"x" * 2000}"', 413)["detail"]
    settings.STOKER_API = {}
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 2000
    anna.post("jobs", ADD % f'"{"x" * 2000}"', 413)
    assert anna.call("POST", "jobs", {}, CONTENT_LENGTH="many").status_code == 413


@pytest.mark.parametrize(
    "path",
    [
        "nothing/here/at-all", "jobs/", "jobs/x/y/z", "dead-letters/1/2/3", "clusters/x/explode",
    ],
)  # fmt: skip
def test_unknown_path_gives_404(path: str, anna: Caller) -> None:
    response = anna.call("GET", path)
    assert response.status_code == 404
    # The project may have pages at other URLs, such as the dashboard's, which end with a slash.
    is_ours = not path.startswith("nothing") and not path.endswith("/")
    assert (response.headers["Content-Type"] == "application/problem+json") is is_ours


@pytest.mark.parametrize("method", ["DELETE", "PUT", "PATCH", "OPTIONS", "TRACE", "POST"])
def test_wrong_method_gives_405(method: str, anna: Caller) -> None:
    response = anna.call(method, "queues")
    assert response.status_code == 405
    assert response.headers["Content-Type"] == "application/problem+json"
    assert response.headers["Allow"] == "GET"


@pytest.mark.parametrize("path", ["queues/%00", "queues?backend=%00", "dead-letters?text=a%00b"])
def test_nul_in_the_url_gives_400(path: str, anna: Caller) -> None:
    response = anna.call("GET", path)
    assert (response.status_code, "NUL" in response.json()["detail"]) == (400, True)


@pytest.mark.parametrize(
    "query",
    [
        "limit=0", "limit=201", "limit=x", "limit=99999999999999999999", "state=x", "reason=x",
        "failed_after=yesterday", "failed_after=1", "failed_before=9999-12-31T23:59:59-23:00",
        "failed_after=0001-01-01T00:00:00%2B23:59", "task=" + "x" * 256,
    ],
)  # fmt: skip
def test_invalid_query_gives_422(query: str, anna: Caller) -> None:
    assert anna.call("GET", f"dead-letters?{query}").status_code == 422


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("jobs?sate=READY", "state"), ("jobs?q=x&tsk=shop.tasks.pay", "task"),
        ("dead-letters?tsk=x", "task"), ("dead-letters/stats?stat=open", "state"),
        ("workflows?stat=FAILED", "state"), ("schedules?limt=1", "limit"),
        ("bulk?aftr=x", "after"), ("audit?operatoin=pause-queue", "operation"),
        ("audit/export?formt=csv", "format"), ("queues?bakend=default", "backend"),
        ("clusters?Backend=default", "backend"), ("metrics?tsk=x", "task"),
    ],
)  # fmt: skip
def test_misspelt_filter_is_refused(path: str, near: str, anna: Caller) -> None:
    response = anna.call("GET", path)
    assert response.status_code == 422, response.content
    assert f"did you mean {near}?" in response.json()["detail"]


def test_unknown_filter_is_refused_with_the_known_ones(anna: Caller, nobody: Caller) -> None:
    refused = anna.call("GET", "queues?colour=red").json()
    assert refused["detail"] == "This address has no query parameter 'colour': it takes backend."
    assert anna.call("POST", "queues/default/pause?bakend=other").status_code == 422
    assert nobody.call("GET", "jobs?sate=READY").status_code == 401
    assert nobody.call("GET", "health/live?probe=1").status_code == 200


@pytest.mark.parametrize("text", ["%25", "\\", "'", "%F0%9F%98%80", "%ff%fe", "_", "$$", "{x}"])
def test_any_text_can_be_searched_for(text: str, anna: Caller) -> None:
    for name in ("text", "key", "task", "queue", "fingerprint"):
        assert anna.call("GET", f"dead-letters?{name}={text}").status_code == 200


# -- errors of the server -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (OperationalError("secret.internal is away"), 503),
        (BrokerUnavailable("secret.internal is away"), 503),
        (DataError("secret.internal"), 422),
        (RuntimeError("secret.internal"), 500),
    ],
)
def test_internal_error_is_logged_and_not_shown(
    error: Exception,
    status: int,
    anna: Caller,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(**_: Any) -> None:
        raise error

    monkeypatch.setattr("stoker.queues.list", fail)
    anna.client.raise_request_exception = False
    with caplog.at_level(logging.ERROR, "django.request"):
        response = anna.call("GET", "queues")
    assert response.status_code == status
    assert response.headers["Content-Type"] == "application/problem+json"
    assert b"secret" not in response.content
    assert ("secret" in caplog.text) is (status == 500)


@pytest.mark.parametrize(
    ("cause", "name"), [(ConnectionError("x"), "broker"), (OperationalError("x"), "store")]
)
def test_unreachable_broker_is_not_called_the_store(
    cause: Exception, name: str, anna: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: Any) -> None:
        raise BrokerUnavailable("secret.internal") from cause

    monkeypatch.setattr("stoker.queues.list", fail)
    detail = anna.call("GET", "queues").json()["detail"]
    assert detail == f"The {name} is unreachable: try again later."


def test_debug_mode_raises_the_error_for_djangos_page(
    anna: Caller, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.DEBUG = True
    monkeypatch.setattr("stoker.queues.list", lambda **_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        anna.call("GET", "queues")


def test_views_ignore_atomic_requests(
    anna: Caller, monkeypatch: pytest.MonkeyPatch, transactional_db: None
) -> None:
    """A bulk action that fails half-way keeps the changes that it has made."""
    seen = []
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    monkeypatch.setattr(
        "stoker.queues.list", lambda **_: seen.append(connection.in_atomic_block) or ()
    )
    anna.get("queues")
    assert seen == [False]


def test_views_ignore_atomic_requests_of_all_databases(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store may be another database than the default one."""
    monkeypatch.setattr("stoker.store.transactions.connections", ["default", "queue"])
    view = enclosed(lambda _: HttpResponse())
    assert view._non_atomic_requests == {"default", "queue"}  # type: ignore[attr-defined]


def test_responses_are_not_cached(anna: Caller, nobody: Caller) -> None:
    for response in (
        anna.call("GET", "queues"),
        nobody.call("GET", "queues"),
        anna.call("GET", f"jobs/{uuid.uuid4()}"),
    ):
        assert response.headers["Cache-Control"] == "no-store"


# -- the OpenAPI document -------------------------------------------------------------------------


def test_user_model_without_is_staff_gets_no_document(
    anna: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A project's own user model need not have it, if it does not use Django's admin."""

    class Plain:
        pk = id = 1
        is_authenticated = is_active = True

    monkeypatch.setattr("stoker.api.urls.SessionUser", lambda _: lambda _: Plain())
    assert anna.call("GET", "openapi.json").status_code == 403


def test_openapi_document_is_for_staff(
    anna: Caller, nobody: Caller, who_may: Callable[..., Caller], settings: Any
) -> None:
    settings.TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates"}]
    for path in ("openapi.json", "docs"):
        settings.STOKER_API = {"DOCS": True}
        assert nobody.call("GET", path).status_code == 401
        assert who_may("stoker.view_job").call("GET", path).status_code == 403
        assert anna.call("POST", path).status_code == 405
        assert anna.call("GET", path).status_code == 200
    page = anna.call("GET", "docs").content.decode()
    assert "http://" not in page
    assert "https://" not in page
    for name in re.findall(r'(?:src|href)="([^"]+)"', page):
        assert nobody.call("GET", name).status_code == 200
    assert nobody.call("GET", "docs/redoc.standalone.js").status_code == 404
    settings.STOKER_API = {}
    assert anna.call("GET", "docs").status_code == 404
    assert anna.call("GET", "docs/swagger-ui.css").status_code == 404


def test_openapi_document_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = document_of(api, "/once/")
    monkeypatch.setattr(type(api), "get_openapi_schema", None)
    assert document_of(api, "/once/") == first


def test_openapi_document_describes_all_operations_and_errors(anna: Caller) -> None:
    document = anna.get("openapi.json")
    assert document["openapi"].startswith("3.1")
    operations = [one for path in document["paths"].values() for one in path.values()]
    ids = [one["operationId"] for one in operations]
    assert len(set(ids)) == len(ids) == len(TABLE)
    for one in operations:
        assert one["description"]
        assert "x-permissions" in one
        answers = one["responses"]
        assert min(answers) < "300"
        assert all(
            list(answer["content"]) == ["application/problem+json"]
            for status, answer in answers.items()
            if status >= "400" and not one["operationId"].endswith(("ready", "health"))
        ), one["operationId"]
        if one["x-permissions"]:
            assert {"401", "403", "404", "422", "503"} <= set(answers)
            assert one["security"]


@pytest.mark.parametrize("module", [filters, values])
def test_fields_of_bodies_share_no_field(module: ModuleType) -> None:
    """Older versions of pydantic give the default of one field to the others: a purge without an
    age deleted dead letters of any age."""
    assert not [name for name, value in vars(module).items() if isinstance(value, FieldInfo)]


def test_api_can_be_included_at_any_path(anna: Caller, settings: Any) -> None:
    settings.ROOT_URLCONF = "tests.api.other_urls"
    assert anna.user is not None
    client = Client()
    client.force_login(anna.user)
    document = client.get("/deep/down/jobs-api/openapi.json").json()
    assert "/deep/down/jobs-api/queues" in document["paths"]
    made = client.post(
        "/deep/down/jobs-api/jobs", {"task": "numbers.add", "args": [1]}, "application/json"
    )
    assert made.headers["Location"].startswith("/deep/down/jobs-api/jobs/")
    assert client.get(made.headers["Location"]).status_code == 200
