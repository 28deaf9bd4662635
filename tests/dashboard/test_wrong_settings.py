"""Pages of the dashboard if an option of ``TASKS`` is wrong."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from tests.dashboard.conftest import PREFIX

pytestmark = pytest.mark.django_db(transaction=True)

WRONG = [
    ({"BROKERS": "redis://127.0.0.1"}, "BROKERS"),
    ({"BROKER": "reddis://127.0.0.1"}, "reddis"),
]


@pytest.mark.parametrize(("options", "named"), WRONG)
@pytest.mark.parametrize("path", ["", "jobs/", "palette/?q=01a1ffdb-f411-7482-86ed-55b43acb2507"])
def test_wrong_option_is_named(
    options: dict[str, str], named: str, path: str, anna: Client, settings: Any
) -> None:
    backend = "stoker.backend.StokerBackend"
    settings.TASKS = {"default": {"BACKEND": backend, "OPTIONS": options}}
    response = anna.get(f"{PREFIX}{path}")
    assert response.status_code == 503
    assert named in response.content.decode()
    told = Client().get(f"{PREFIX}jobs/")
    assert named not in told.content.decode(), "shown without sign-in"
