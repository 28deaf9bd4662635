"""Tests on PostgreSQL: the server that `scripts/services env` names, else the usual one."""

import os

from tests.settings.base import *  # noqa: F403 - settings are built on top of one another
from tests.settings.base import from_url

_url = os.environ.get("STOKER_TEST_POSTGRES_URL", "postgresql://postgres@127.0.0.1:5432/postgres")

DATABASES = {"default": from_url(_url, "django.db.backends.postgresql")}
if "STOKER_TEST_POOLER" in os.environ:
    DATABASES["default"]["DISABLE_SERVER_SIDE_CURSORS"] = True
