"""Tests with the queue on Redis, and the store on PostgreSQL."""

import os

from tests.settings.base import RUN, TASKS
from tests.settings.postgres import *  # noqa: F403 - settings are built on top of one another

TASKS["default"]["OPTIONS"] = {
    "BROKER": os.environ.get("STOKER_TEST_REDIS_URL", "redis://127.0.0.1:6379/0"),
    "CLUSTER": f"test-{RUN}",
    **TASKS["default"]["OPTIONS"],
}
