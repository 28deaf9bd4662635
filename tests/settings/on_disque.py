"""Tests with the queue on the stand-in for Disque, and the store on PostgreSQL."""

import os

from tests.settings.base import RUN, TASKS
from tests.settings.postgres import *  # noqa: F403 - settings are built on top of one another

TASKS["default"]["OPTIONS"] = {
    "BROKER": os.environ.get("STOKER_TEST_DISQUE_URL", "disque://127.0.0.1:7711"),
    "CLUSTER": f"test-{RUN}",
    **TASKS["default"]["OPTIONS"],
}
