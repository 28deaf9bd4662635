"""Tests with the project's data on SQLite and the queue on PostgreSQL, under another alias."""

from tests.settings import postgres, sqlite
from tests.settings.base import *  # noqa: F403 - settings are built on top of one another
from tests.settings.base import TASKS, from_url

DATABASES = {
    "default": sqlite.DATABASES["default"],
    "queue": from_url(postgres._url, "django.db.backends.postgresql", alias="queue"),
}
TASKS["default"]["OPTIONS"] = {"BROKER": "orm://queue", **TASKS["default"]["OPTIONS"]}
