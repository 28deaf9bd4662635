"""Tests on MariaDB: the server that `scripts/services env` names, else the usual one."""

import os

from tests.settings.base import *  # noqa: F403 - settings are built on top of one another
from tests.settings.base import from_url

_url = os.environ.get("STOKER_TEST_MARIADB_URL", "mysql://root@127.0.0.1:3306/mysql")

DATABASES = {"default": from_url(_url, "django.db.backends.mysql", charset="utf8mb4")}
# The collation is not the connection's, as in many databases of users.
DATABASES["default"]["TEST"] |= {"CHARSET": "utf8mb4", "COLLATION": "utf8mb4_unicode_ci"}
