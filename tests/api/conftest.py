"""A project with the API, and its users."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client, override_settings

import tests.app.exposed  # noqa: F401 - registers exposed tasks

PREFIX = "/stoker/"


def pytest_itemcollected(item: pytest.Item) -> None:
    """Run on PostgreSQL, which refuses most: NUL characters, numbers out of range, statements in
    a transaction after an error."""
    if item.get_closest_marker("sqlite") is None:
        item.add_marker(pytest.mark.postgres)


class Caller:
    """A user of the API and a client."""

    def __init__(self, user: User | None, **headers: str) -> None:
        self.client = Client(headers=headers)
        self.user = user
        if user is not None and not headers:
            self.client.force_login(user)

    def call(self, method: str, path: str, body: Any = None, **more: Any) -> Any:
        """Return the response."""
        if body is not None:
            text = body if isinstance(body, str) else json.dumps(body)
            more = {"data": text, "content_type": "application/json", **more}
        return self.client.generic(method, PREFIX + path, **more)

    def get(self, path: str, **query: Any) -> Any:
        """Return the JSON of a successful call."""
        response = self.client.get(PREFIX + path, query)
        assert response.status_code == 200, response.content
        return response.json()

    def post(self, path: str, body: Any = None, status: int = 200, **more: Any) -> Any:
        """Check the status and return the JSON."""
        response = self.call("POST", path, body, **more)
        assert response.status_code == status, response.content
        if status >= 400:
            assert response.headers["Content-Type"] == "application/problem+json"
        return response.json()


SETTINGS: dict[str, Any] = {
    "ROOT_URLCONF": "tests.api.urls",
    "SESSION_ENGINE": "django.contrib.sessions.backends.signed_cookies",
    "MIDDLEWARE": [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.auth.middleware.LoginRequiredMiddleware",
    ],
}


@pytest.fixture(autouse=True, scope="package")
def _project() -> Iterator[None]:
    """Use the same settings in all tests: after each change Django reads the URLs again."""
    with override_settings(**SETTINGS):
        yield


@pytest.fixture
def anna(db: None) -> Caller:
    """Give a superuser."""
    return Caller(User.objects.create_superuser("anna"))


@pytest.fixture
def nobody(db: None) -> Caller:
    """Give an anonymous caller."""
    return Caller(None)


@pytest.fixture
def who_may(db: None) -> Callable[..., Caller]:
    """Make users with exactly the given permissions."""

    def make(*permissions: str) -> Caller:
        user = User.objects.create_user(f"user {User.objects.count()}")
        names = [name.removeprefix("stoker.") for name in permissions]
        found = Permission.objects.filter(content_type__app_label="stoker", codename__in=names)
        assert found.count() == len(names), permissions
        user.user_permissions.set(found)
        return Caller(user)

    return make
