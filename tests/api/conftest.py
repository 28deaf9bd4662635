"""A project that has the API, and people who call it."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

import tests.app.exposed  # noqa: F401 - its tasks are exposed then

PREFIX = "/stoker/"


def pytest_itemcollected(item: pytest.Item) -> None:
    """The database plays little part here, and PostgreSQL is the one that refuses most: NUL bytes,
    numbers out of range, a transaction that goes on after an error."""
    if item.get_closest_marker("sqlite") is None:
        item.add_marker(pytest.mark.postgres)


class Caller:
    """Somebody who calls the API, and reads what it says."""

    def __init__(self, user: User | None, **headers: str) -> None:
        self.client = Client(headers=headers)
        self.user = user
        if user is not None and not headers:
            self.client.force_login(user)

    def call(self, method: str, path: str, body: Any = None, **more: Any) -> Any:
        """The response."""
        if body is not None:
            text = body if isinstance(body, str) else json.dumps(body)
            more = {"data": text, "content_type": "application/json", **more}
        return self.client.generic(method, PREFIX + path, **more)

    def get(self, path: str, **query: Any) -> Any:
        """What is answered, of a call that is done."""
        response = self.client.get(PREFIX + path, query)
        assert response.status_code == 200, response.content
        return response.json()

    def post(self, path: str, body: Any = None, status: int = 200, **more: Any) -> Any:
        """What is answered."""
        response = self.call("POST", path, body, **more)
        assert response.status_code == status, response.content
        if status >= 400:
            assert response.headers["Content-Type"] == "application/problem+json"
        return response.json()


@pytest.fixture(autouse=True)
def _project(settings: Any) -> Iterator[None]:
    settings.ROOT_URLCONF = "tests.api.urls"
    settings.SESSION_ENGINE = "django.contrib.sessions.backends.signed_cookies"
    settings.MIDDLEWARE = [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.auth.middleware.LoginRequiredMiddleware",
    ]
    return


@pytest.fixture
def anna(db: None) -> Caller:
    """Who may do everything."""
    return Caller(User.objects.create_superuser("anna"))


@pytest.fixture
def nobody(db: None) -> Caller:
    """Who has not said who he is."""
    return Caller(None)


@pytest.fixture
def who_may(db: None) -> Callable[..., Caller]:
    """Make somebody with these permissions only."""

    def make(*permissions: str) -> Caller:
        user = User.objects.create_user(f"user {User.objects.count()}")
        names = [name.removeprefix("stoker.") for name in permissions]
        found = Permission.objects.filter(content_type__app_label="stoker", codename__in=names)
        assert found.count() == len(names), permissions
        user.user_permissions.set(found)
        return Caller(user)

    return make
