"""The queue and its settings, for the caller and for `saq`."""

import os
from typing import Any

from saq import Queue

from benchmarks.peers import side

queue = Queue.from_url(os.environ["PEER_REDIS_URL"])


async def nothing(context: dict[str, Any], *, number: int) -> int:
    return side.nothing(number)


async def first_line(context: dict[str, Any], *, number: int) -> int:
    return side.first_line(number)


settings = {"queue": queue, "functions": [nothing, first_line], "concurrency": 10}
