"""The Django project under test. STOKER_CRASH, a JSON object, names its servers."""

import importlib.util
import json
import os
from typing import Any

CRASH: dict[str, Any] = json.loads(os.environ["STOKER_CRASH"])

SECRET_KEY = "for the crash checker only"
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["stoker", "tests.crash"]
# On Django 5.2 the backport provides django.tasks.
if importlib.util.find_spec("django.tasks") is None:
    INSTALLED_APPS.insert(0, "django_tasks")

DATABASES: dict[str, dict[str, Any]] = {"default": CRASH["database"]}
TASKS: dict[str, dict[str, Any]] = {
    "default": {
        "BACKEND": "stoker.backend.StokerBackend",
        "QUEUES": ["default"],
        "OPTIONS": {
            "BROKER": CRASH["broker"],
            "CLUSTER": "crash",
            **CRASH["options"],
            **json.loads(os.environ.get("STOKER_TEST_OPTIONS", "{}")),
        },
    },
}
LEDGER = CRASH["ledger"]

if CRASH["broker"].startswith("sqs:"):
    from tests.servers.sqs import CREDENTIALS

    os.environ.update(CREDENTIALS)
