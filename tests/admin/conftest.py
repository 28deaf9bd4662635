"""A project with the admin, and its users."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from tests.app import frail


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests: they have settings of their own."""
    item.add_marker(pytest.mark.with_admin)


class Visitor:
    """A signed-in user and a client."""

    def __init__(self, user: User) -> None:
        self.user = user
        self.client = Client()
        self.client.force_login(user)

    def get(self, path: str, status: int = 200, **query: Any) -> str:
        """Return the page."""
        response = self.client.get(f"/admin/stoker/{path}", query)
        assert response.status_code == status, (response.status_code, response.content)
        return response.content.decode()

    def post(self, path: str, status: int = 200, **fields: Any) -> str:
        """Post, follow redirects and return the page."""
        response = self.client.post(f"/admin/stoker/{path}", fields, follow=True)
        assert response.status_code == status, (response.status_code, response.content)
        return response.content.decode()


@pytest.fixture(autouse=True)
def _clear_broken(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # A busy machine may need more than a moment for a few targets.
    monkeypatch.setattr("stoker.operations.bulk.AT_ONCE_SECONDS", 600.0)
    frail.broken.clear()
    yield
    frail.broken.clear()


@pytest.fixture
def anna(transactional_db: None) -> Visitor:
    """Give a superuser."""
    return Visitor(User.objects.create_superuser("anna"))


@pytest.fixture
def who_may(transactional_db: None) -> Callable[..., Visitor]:
    """Make staff users with exactly the given permissions."""

    def make(*permissions: str) -> Visitor:
        user = User.objects.create_user(f"user{User.objects.count()}", is_staff=True)
        for permission in permissions:
            app, _, codename = permission.partition(".")
            found = Permission.objects.get(content_type__app_label=app, codename=codename)
            user.user_permissions.add(found)
        return Visitor(user)

    return make
