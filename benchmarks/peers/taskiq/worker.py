"""The broker and its tasks, for the caller and for `taskiq worker`."""

import os
from typing import Any

from taskiq_redis import ListQueueBroker, RedisAsyncResultBackend, RedisStreamBroker

from benchmarks.peers import side

URL = os.environ["PEER_REDIS_URL"]
WORDS = os.environ["PEER_VARIANT"].split("-")

broker: Any = (ListQueueBroker if "list" in WORDS else RedisStreamBroker)(URL)
if "unkept" not in WORDS:
    broker = broker.with_result_backend(RedisAsyncResultBackend(URL, result_ex_time=86400))


async def nothing(number: int) -> int:
    return side.nothing(number)


async def first_line(began_ns: int) -> int:
    return side.first_line(began_ns)


TASKS = {one.__name__: broker.task(task_name=one.__name__)(one) for one in (nothing, first_line)}
