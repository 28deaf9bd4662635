"""Tests on SQLite in a file: other processes could not see a database in memory."""

import tempfile
from pathlib import Path

from tests.settings.base import *  # noqa: F403 - settings are built on top of one another
from tests.settings.base import CONN_MAX_AGE, RUN, name_of

_folder = Path(tempfile.gettempdir())

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": name_of("default", str(_folder / f"stoker-{RUN}-default.sqlite3")),
        "TEST": {"NAME": str(_folder / f"stoker-{RUN}-test-default.sqlite3")},
        "CONN_MAX_AGE": CONN_MAX_AGE,
    },
}
