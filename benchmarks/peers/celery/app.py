"""The app and its tasks, for the caller and for `celery worker`."""

import os
from typing import Any

from celery import Celery

from benchmarks.peers import side

URL = os.environ["PEER_REDIS_URL"]
VARIANT = os.environ["PEER_VARIANT"]
KEEPS = VARIANT == "results"

app: Any = Celery("bench", broker=URL, backend=URL if KEEPS else None)
app.conf.worker_prefetch_multiplier = 100
app.conf.broker_connection_retry_on_startup = True
app.conf.task_ignore_result = not KEEPS
if VARIANT == "late":
    app.conf.task_acks_late = True
    app.conf.task_reject_on_worker_lost = True


def nothing(number: int) -> int:
    return side.nothing(number)


def first_line(began_ns: int) -> int:
    return side.first_line(began_ns)


TASKS = {one.__name__: app.task(name=one.__name__)(one) for one in (nothing, first_line)}
