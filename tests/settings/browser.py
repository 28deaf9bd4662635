"""Tests in a browser, on PostgreSQL: a shop whose site has the dashboard and the admin."""

import sys
from pathlib import Path

from tests.dashboard.project import SETTINGS
from tests.settings.with_admin import *  # noqa: F403 - settings are built on top of one another
from tests.settings.with_admin import INSTALLED_APPS as _APPS
from tests.settings.with_admin import TASKS as _TASKS
from tests.settings.with_admin import TEMPLATES as _TEMPLATES

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "browser" / "project"))

globals().update(SETTINGS)
INSTALLED_APPS = [*_APPS, "shop"]
ALLOWED_HOSTS = ["127.0.0.1"]
MIDDLEWARE = [
    *SETTINGS["MIDDLEWARE"],
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [{**_TEMPLATES[0], "DIRS": SETTINGS["TEMPLATES"][0]["DIRS"]}]
ROOT_URLCONF = "tests.browser.urls"
_TASKS["default"]["OPTIONS"].setdefault("LOGS", {"level": "INFO"})
