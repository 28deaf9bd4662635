"""The queue and its tasks, for the caller and for `huey_consumer`."""

import os

from huey import RedisHuey

from benchmarks.peers import side

huey = RedisHuey("bench", url=os.environ["PEER_REDIS_URL"])

TASKS = {name: huey.task()(getattr(side, name)) for name in (side.NOTHING, side.FIRST_LINE)}
