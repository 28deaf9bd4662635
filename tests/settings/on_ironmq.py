"""Tests with the queue on the stand-in for IronMQ, and the store on PostgreSQL."""

import os

from tests.settings.base import RUN, TASKS
from tests.settings.postgres import *  # noqa: F403 - settings are built on top of one another

TASKS["default"]["OPTIONS"] = {
    "BROKER": os.environ.get("STOKER_TEST_IRONMQ_URL", "ironmq://project:token@127.0.0.1:8080"),
    "CLUSTER": f"test-{RUN}",
    **TASKS["default"]["OPTIONS"],
}
