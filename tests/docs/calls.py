"""Calls of the pages about the HTTP API and webhooks, with the functions that the pages show."""

import json
import os
import time
from collections.abc import Callable
from io import BytesIO
from types import SimpleNamespace
from typing import Any
from unittest import mock
from urllib.error import HTTPError

from django.contrib.auth.models import User
from django.test import Client, RequestFactory, override_settings

from stoker.reporters import webhook

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


EVENTS = {
    "job.failed": {
        "job": {"task": "shop.tasks.charge"},
        "error": {"message": "The bank is closed."},
    },
    "schedule.skipped": {"schedule": "nightly", "outcome": "skipped", "job_id": None},
}


def send_event(
    receive: Callable[..., Any], secret: str, seconds_ago: float = 0, event: str = "job.failed"
) -> int | str:
    """Send an event to a view by the job that sends webhooks. Return the status, or the error."""

    def open_url(request: Any, timeout: float) -> Any:
        response = receive(
            RequestFactory().post(
                "/hooks/jobs",
                request.data,
                content_type="application/json",
                headers=dict(request.header_items()),
            )
        )
        if response.status_code >= 400:
            body = BytesIO(response.content)
            raise HTTPError("", response.status_code, "", request.headers, body)
        return mock.MagicMock(**{"__enter__.return_value.status": response.status_code})

    url = "https://ops.example.com/hooks/jobs"
    reporters = {"webhook": {"url": url, "secret": secret, "name": "ops"}}
    backend = {"BACKEND": "stoker.backend.StokerBackend", "OPTIONS": {"REPORTERS": reporters}}
    context: Any = SimpleNamespace(task_result=SimpleNamespace(backend="default"))
    moment = time.time() - seconds_ago
    with (
        override_settings(TASKS={"default": backend}),
        mock.patch.object(webhook, "_opener", SimpleNamespace(open=open_url)),
        mock.patch.object(webhook, "time", SimpleNamespace(time=lambda: moment)),
    ):
        try:
            body = json.dumps({"type": event, "data": EVENTS[event]})
            return webhook.send_webhook.func(context, "ops", event, f"1-{event}", body)
        except webhook.WebhookFailed as error:
            return f"WebhookFailed: {error}"
