"""Common settings of the tests, and the names of databases.

Several runs, each with several workers of pytest-xdist, use the same servers at the same time, and
tests start clusters in processes of their own. Hence these environment variables:

- STOKER_TEST_RUN: a word that differs for each run and worker, and is part of the name of every
  database and of everything else on a server;
- STOKER_TEST_OPTIONS: the OPTIONS that a test wants in a process that it starts;
- STOKER_TEST_DATABASES: set by `tests/conftest.py` once the test databases exist, as JSON of alias
  and name. A process started by a test reads it and uses the same databases;
- STOKER_TEST_CONN_MAX_AGE: for how many seconds such a process keeps its connections.
"""

import importlib.util
import json
import os
from typing import Any
from urllib.parse import unquote, urlsplit

RUN = os.environ.setdefault("STOKER_TEST_RUN", str(os.getpid()))
if (_worker := os.environ.get("PYTEST_XDIST_WORKER", "")) and not RUN.endswith(f"_{_worker}"):
    # A process that this worker starts inherits both variables, and adds nothing.
    RUN = os.environ["STOKER_TEST_RUN"] = f"{RUN}_{_worker}"

CONN_MAX_AGE = int(os.environ.get("STOKER_TEST_CONN_MAX_AGE", "0"))

SECRET_KEY = "for tests only"
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
ROOT_URLCONF = "tests.app.urls"

INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "stoker",
    "stoker.contrib.django_q",
    "tests.app",
]
# On Django 5.2 the backport provides django.tasks.
if importlib.util.find_spec("django.tasks") is None:
    INSTALLED_APPS.insert(2, "django_tasks")

# Django 6.1 asks for it. The tests send no mail.
MAILERS = {"default": {"BACKEND": "django.core.mail.backends.locmem.EmailBackend"}}

TASKS: dict[str, dict[str, Any]] = {
    "default": {
        "BACKEND": "stoker.backend.StokerBackend",
        "QUEUES": [],
        "OPTIONS": json.loads(os.environ.get("STOKER_TEST_OPTIONS", "{}")),
    },
}


def name_of(alias: str, otherwise: str) -> str:
    """Return the database of the test that started this process, or the one of this run."""
    names: dict[str, str] = json.loads(os.environ.get("STOKER_TEST_DATABASES", "{}"))
    return names.get(alias, otherwise)


def from_url(url: str, engine: str, alias: str = "default", **options: Any) -> dict[str, Any]:
    """Build an entry of DATABASES for the server at `url`, with a name that only this run uses."""
    parts = urlsplit(url)
    return {
        "ENGINE": engine,
        "HOST": parts.hostname or "127.0.0.1",
        "PORT": str(parts.port or ""),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "NAME": name_of(alias, f"stoker_{alias}_{RUN}"),
        "OPTIONS": options,
        "CONN_MAX_AGE": CONN_MAX_AGE,
        "TEST": {"NAME": f"stoker_test_{alias}_{RUN}"},
    }
