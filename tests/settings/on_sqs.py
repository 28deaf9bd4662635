"""Tests with the queue on the stand-in for Amazon SQS, and the store on PostgreSQL."""

import os

from tests.servers.sqs import CREDENTIALS
from tests.settings.base import RUN, TASKS
from tests.settings.postgres import *  # noqa: F403 - settings are built on top of one another

os.environ.update(CREDENTIALS)
_url = os.environ.get("STOKER_TEST_SQS_URL", "sqs://us-east-1/test?endpoint=http://127.0.0.1:5000")

TASKS["default"]["OPTIONS"] = {
    "BROKER": _url.replace("/test?", f"/test-{RUN}?"),
    "CLUSTER": f"test-{RUN}",
    **TASKS["default"]["OPTIONS"],
}
