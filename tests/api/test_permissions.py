"""Permissions of every route: a table in which each new route must be entered."""

import logging
import re
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django import VERSION
from django.contrib.auth.models import User
from django.test import Client
from django.utils.log import AdminEmailHandler
from django.views.decorators.debug import sensitive_variables

from stoker.api.access import SessionUser, TokenUser
from stoker.api.urls import AREAS, api

from tests.api.conftest import PREFIX, Caller

pytestmark = pytest.mark.django_db

VIEW_ALL = ("stoker.view_cluster", "stoker.view_job", "stoker.view_deadletter")
TABLE: dict[str, tuple[str, ...]] = {
    "GET health/live": (),
    "GET health/ready": (),
    "GET health/clusters": ("stoker.view_cluster",),
    "GET status": VIEW_ALL,
    "GET tasks": ("stoker.add_job",),
    "GET jobs": ("stoker.view_job",),
    "POST jobs": ("stoker.add_job",),
    "GET jobs/{job_id}": ("stoker.view_job",),
    "GET jobs/{job_id}/why": ("stoker.view_job",),
    "GET jobs/{job_id}/logs": ("stoker.view_logchunk",),
    "POST jobs/{job_id}/cancel": ("stoker.cancel_job",),
    "POST jobs/{job_id}/run": ("stoker.change_job",),
    "POST jobs/{job_id}/hold": ("stoker.change_job",),
    "POST jobs/{job_id}/reschedule": ("stoker.change_job",),
    "POST jobs/{job_id}/prioritise": ("stoker.change_job",),
    "POST jobs/{job_id}/move": ("stoker.change_job",),
    "POST jobs/{job_id}/edit": ("stoker.change_job",),
    "GET queues": ("stoker.view_job",),
    "GET queues/{stoker_name:queue}": ("stoker.view_job",),
    "POST queues/{path:queue}/pause": ("stoker.pause_queue",),
    "POST queues/{path:queue}/resume": ("stoker.pause_queue",),
    "POST queues/{path:queue}/clear": ("stoker.clear_queue",),
    "GET dead-letters": ("stoker.view_deadletter",),
    "GET dead-letters/stats": ("stoker.view_deadletter",),
    "GET dead-letters/{letter_id}": ("stoker.view_deadletter",),
    "POST dead-letters/requeue": ("stoker.requeue_deadletter",),
    "POST dead-letters/discard": ("stoker.discard_deadletter",),
    "POST dead-letters/{letter_id}/undo-requeue": ("stoker.requeue_deadletter",),
    "POST dead-letters/purge": ("stoker.purge_deadletter",),
    "POST dead-letters/{letter_id}/requeue": ("stoker.requeue_deadletter",),
    "POST dead-letters/{letter_id}/discard": ("stoker.discard_deadletter",),
    "GET schedules": ("stoker.view_schedule",),
    "GET schedules/{stoker_name:schedule}": ("stoker.view_schedule",),
    "POST schedules/{path:schedule}/run": ("stoker.run_schedule",),
    "POST schedules/{path:schedule}/pause": ("stoker.pause_schedule",),
    "POST schedules/{path:schedule}/resume": ("stoker.pause_schedule",),
    "GET workflows": ("stoker.view_workflow",),
    "GET workflows/{workflow_id}": ("stoker.view_workflow",),
    "GET workflows/{workflow_id}/steps": ("stoker.view_workflow",),
    "POST workflows/{workflow_id}/cancel": ("stoker.change_workflow",),
    "POST workflows/{workflow_id}/retry": ("stoker.change_workflow",),
    "POST workflows/{workflow_id}/undo-retry": ("stoker.change_workflow",),
    "GET metrics": ("stoker.view_job",),
    "GET metrics/tasks": ("stoker.view_job",),
    "GET metrics/queues": ("stoker.view_job",),
    "GET audit": ("stoker.view_bulkoperation",),
    "GET audit/export": ("stoker.view_bulkoperation",),
    "GET clusters": ("stoker.view_cluster",),
    "GET clusters/{cluster_id}": ("stoker.view_cluster",),
    "POST clusters/{cluster_id}/quiet": ("stoker.quiet_cluster",),
    "POST clusters/{cluster_id}/recycle": ("stoker.change_cluster",),
    "POST clusters/{cluster_id}/resize": ("stoker.change_cluster",),
    "POST clusters/{cluster_id}/resume": ("stoker.quiet_cluster",),
    "POST clusters/{cluster_id}/stop": ("stoker.stop_cluster",),
    "GET bulk": ("stoker.view_bulkoperation",),
    "GET bulk/{bulk_id}": ("stoker.view_bulkoperation",),
    "POST bulk": ("stoker.view_bulkoperation",),
    "POST bulk/{bulk_id}/pause": ("stoker.view_bulkoperation",),
    "POST bulk/{bulk_id}/resume": ("stoker.view_bulkoperation",),
    "POST bulk/{bulk_id}/stop": ("stoker.view_bulkoperation",),
    "POST bulk/{bulk_id}/undo": ("stoker.view_bulkoperation",),
}
CLOSED = [name for name, permissions in TABLE.items() if permissions]


def operations() -> Iterator[tuple[str, Any]]:
    for router in api._get_bound_routers():
        for path, view in router.path_operations.items():
            for operation in view.operations:
                for method in operation.methods:
                    yield f"{method} {path.lstrip('/')}", operation


def test_every_route_asks_for_the_permissions_in_the_table() -> None:
    """A route that was added without a permission fails here."""
    asked = {}
    for name, operation in operations():
        callbacks = operation.auth_callbacks
        assert [type(one) for one in callbacks] in ([], [SessionUser, TokenUser]), name
        asked[name] = callbacks[0].permissions if callbacks else ()
        assert all(one.permissions == asked[name] for one in callbacks)
    assert asked == TABLE, "enter a new route and its permissions in TABLE"
    assert {name.partition(" ")[2].partition("/")[0] for name in TABLE} == set(AREAS)


def call(caller: Caller, route: str) -> Any:
    """Call a route with ids that need not exist."""
    method, _, path = route.partition(" ")
    for name in ("{job_id}", "{letter_id}", "{cluster_id}", "{workflow_id}"):
        path = path.replace(name, str(uuid.uuid4()))
    path = re.sub(r"{\w+:queue}", "mail", re.sub(r"{\w+:schedule}", "nightly", path))
    return caller.call(method, path, body={} if method == "POST" else None)


@pytest.mark.parametrize("route", CLOSED)
def test_anonymous_caller_gets_401(route: str, nobody: Caller) -> None:
    response = call(nobody, route)
    assert response.status_code == 401
    assert response.json()["status"] == 401
    assert "WWW-Authenticate" in response.headers


@pytest.mark.parametrize("route", CLOSED)
def test_all_other_permissions_give_403(route: str, who_may: Callable[..., Caller]) -> None:
    """The permission is checked before the request's body and the object."""
    others = {one for permissions in TABLE.values() for one in permissions} - {TABLE[route][-1]}
    response = call(who_may(*others), route)
    assert response.status_code == 403
    assert TABLE[route][-1] in response.json()["detail"]


@pytest.mark.parametrize("route", CLOSED)
def test_the_permission_gives_access(route: str, who_may: Callable[..., Caller]) -> None:
    assert call(who_may(*TABLE[route]), route).status_code not in (401, 403, 405)


def test_inactive_user_gets_401(who_may: Callable[..., Caller]) -> None:
    caller = who_may("stoker.view_job")
    User.objects.update(is_active=False)
    assert caller.call("GET", "queues").status_code == 401


# -- sessions and tokens --------------------------------------------------------------------------


def test_session_needs_a_csrf_token_to_change_anything(anna: Caller) -> None:
    assert anna.user is not None
    client = Client(enforce_csrf_checks=True)
    client.force_login(anna.user)
    path = f"{PREFIX}dead-letters/purge"
    body = {"data": {"older_than_seconds": 1, "dry_run": True}, "content_type": "application/json"}
    refused = client.post(path, **body)
    assert (refused.status_code, "CSRF" in refused.json()["detail"]) == (403, True)
    assert client.get(f"{PREFIX}queues").status_code == 200
    client.cookies["csrftoken"] = "x" * 32
    assert client.post(path, **body, headers={"X-CSRFToken": "x" * 32}).status_code == 200


def user_of_token(token: str) -> User | None:
    """Return the user of a token, as a project's own function does."""
    return User.objects.filter(username=token.removeprefix("token of ")).first()


@pytest.fixture
def _tokens(settings: Any) -> None:
    settings.STOKER_API = {"TOKEN_USER": "tests.api.test_permissions.user_of_token"}


@pytest.mark.usefixtures("_tokens")
def test_token_acts_for_its_user_without_csrf_token(anna: Caller) -> None:
    client = Client(enforce_csrf_checks=True, headers={"Authorization": "Bearer token of anna"})
    done = client.post(
        f"{PREFIX}dead-letters/purge",
        {"older_than_seconds": 1, "dry_run": True},
        content_type="application/json",
    )
    assert done.status_code == 200


@pytest.mark.parametrize("path", ["jobs/a/b/c", "queues/a%0Ab/resume"])
def test_change_at_an_unknown_url_gives_404_without_csrf_token(path: str) -> None:
    """The second has a line break, which no name of a queue has."""
    answer = Client(enforce_csrf_checks=True).post(
        f"{PREFIX}{path}", {}, content_type="application/json"
    )
    assert (answer.status_code, answer["Content-Type"]) == (404, "application/problem+json")


@pytest.mark.usefixtures("_tokens")
@pytest.mark.parametrize(
    "header", ["Bearer token of nobody", "Bearer ", "Bearer", "Basic token of anna", "", "x"]
)
def test_wrong_token_with_a_valid_session_gets_401(header: str, anna: Caller) -> None:
    assert anna.user is not None
    client = Client(headers={"Authorization": header})
    client.force_login(anna.user)
    assert client.get(f"{PREFIX}queues").status_code == 401


@sensitive_variables("token")
def fail_to_find_user(token: str) -> User | None:
    raise RuntimeError("the directory is down")


def test_error_mail_does_not_contain_the_token(settings: Any, mailoutbox: list[Any]) -> None:
    settings.STOKER_API = {"TOKEN_USER": "tests.api.test_permissions.fail_to_find_user"}
    address = "ops@example.org"
    settings.ADMINS = [address] if VERSION >= (6, 0) else [("ops", address)]
    handler, logger = AdminEmailHandler(include_html=True), logging.getLogger("django.request")
    logger.addHandler(handler)
    try:
        client = Client(headers={"Authorization": "Bearer tok-4711"}, raise_request_exception=False)
        assert client.get(f"{PREFIX}queues").status_code == 500
    finally:
        logger.removeHandler(handler)
    html = "".join(mail.alternatives[0][0] for mail in mailoutbox if mail.alternatives)
    assert "find_user_of" in html
    assert "tok-4711" not in html + "".join(mail.body for mail in mailoutbox)


@pytest.mark.usefixtures("_tokens")
def test_token_of_user_without_permission_gets_403(
    who_may: Callable[..., Caller],
) -> None:
    user = who_may("stoker.view_cluster").user
    assert user is not None
    caller = Caller(user, Authorization=f"Bearer token of {user.username}")
    assert caller.call("GET", "queues").status_code == 403
    assert caller.call("GET", "clusters").status_code == 200


@pytest.mark.usefixtures("_tokens")
def test_token_of_an_inactive_user_gets_401(anna: Caller) -> None:
    assert anna.user is not None
    caller = Caller(anna.user, Authorization="Bearer token of anna")
    assert caller.call("GET", "queues").status_code == 200
    User.objects.update(is_active=False)
    assert caller.call("GET", "queues").status_code == 401


def test_session_of_an_inactive_user_gets_401_whatever_the_backend_allows(
    anna: Caller, settings: Any
) -> None:
    settings.AUTHENTICATION_BACKENDS = ["django.contrib.auth.backends.AllowAllUsersModelBackend"]
    assert anna.user is not None
    anna.client.force_login(anna.user)
    User.objects.update(is_active=False)
    assert anna.call("GET", "queues").status_code == 401


def test_token_without_token_user_setting_gets_401(anna: Caller) -> None:
    caller = Caller(anna.user, Authorization="Bearer token of anna")
    assert caller.call("GET", "queues").status_code == 401


def test_sessions_can_be_switched_off(anna: Caller, settings: Any) -> None:
    settings.STOKER_API = {"SESSION": False}
    assert anna.call("GET", "queues").status_code == 401


def test_session_without_session_middleware_gets_401(anna: Caller, settings: Any) -> None:
    settings.MIDDLEWARE = []
    assert anna.call("GET", "queues").status_code == 401
