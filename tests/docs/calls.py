"""Make calls of the HTTP API as its page shows them, with the page's own function for tokens."""

import json
import os
from typing import Any
from unittest import mock

from django.contrib.auth.models import User
from django.test import Client, override_settings

TOKEN = "3f9c"


def call_api(method: str, path: str, body: Any = None) -> Any:
    """Return the response to a program whose user has all permissions."""
    if not User.objects.filter(username="deploy").exists():
        User.objects.create_superuser("deploy")
    client = Client(headers={"Authorization": f"Bearer {TOKEN}"})
    more: dict[str, Any] = {}
    if body is not None:
        more = {"data": json.dumps(body), "content_type": "application/json"}
    with (
        mock.patch.dict(os.environ, {"TOKENS": f"monitor:77aa,deploy:{TOKEN}"}),
        override_settings(
            ROOT_URLCONF="tests.api.urls",
            STOKER_API={"TOKEN_USER": "docs_howto_http_api.user_of_token"},
            MIDDLEWARE=[],
        ),
    ):
        return client.generic(method, f"/stoker/{path}", **more).json()
