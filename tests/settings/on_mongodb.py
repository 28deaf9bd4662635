"""Tests with the queue on MongoDB or its stand-in, and the store on PostgreSQL."""

import os

from tests.settings.base import RUN, TASKS
from tests.settings.postgres import *  # noqa: F403 - settings are built on top of one another

TASKS["default"]["OPTIONS"] = {
    "BROKER": os.environ.get("STOKER_TEST_MONGODB_URL", "mongodb://127.0.0.1:27017/stoker_test"),
    "CLUSTER": f"test-{RUN}",
    **TASKS["default"]["OPTIONS"],
}
