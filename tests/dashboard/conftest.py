"""A project with the dashboard, and its users."""

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from stoker.dashboard import figures

from tests.dashboard.project import SETTINGS

PREFIX = "/stoker/"


@pytest.fixture(autouse=True)
def _project(settings: Any) -> None:
    figures.forget()
    for name, value in SETTINGS.items():
        setattr(settings, name, value)


@pytest.fixture
def anna(db: None) -> Client:
    """Give a client of a superuser."""
    return signed_in(User.objects.create_superuser("anna"))


@pytest.fixture
def who_may(db: None) -> Callable[..., Client]:
    """Make clients of users with exactly the given permissions."""

    def make(*permissions: str) -> Client:
        user = User.objects.create_user(f"user {User.objects.count()}")
        names = [name.removeprefix("stoker.") for name in permissions]
        found = Permission.objects.filter(content_type__app_label="stoker", codename__in=names)
        assert found.count() == len(names), permissions
        user.user_permissions.set(found)
        return signed_in(user)

    return make


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client
