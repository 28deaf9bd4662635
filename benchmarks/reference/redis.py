"""By hand on Redis: two scripts, which claim a batch and finish one. One hash of packages, one list
of ids, one hash of what runs, one of results."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from redis import Redis

BATCH = 100
CLAIM = """
local ids = redis.call('LPOP', KEYS[1], ARGV[1])
if not ids then return {} end
local running = {}
for i, id in ipairs(ids) do
    running[2 * i - 1], running[2 * i] = id, ARGV[2]
end
redis.call('HSET', KEYS[3], unpack(running))
local packages = redis.call('HMGET', KEYS[2], unpack(ids))
return {ids, packages}
"""
FINISH = """
local ids = {}
for i = 1, #ARGV, 2 do ids[#ids + 1] = ARGV[i] end
redis.call('HDEL', KEYS[3], unpack(ids))
redis.call('HDEL', KEYS[2], unpack(ids))
redis.call('HSET', KEYS[4], unpack(ARGV))
return #ids
"""


class RedisReference:
    """One connection.

    Args:
        url: a Redis that is written to.
    """

    def __init__(self, url: str) -> None:
        self._client: Any = Redis.from_url(url)
        self._keys = [f"{{by-hand}}:{name}" for name in ("ready", "package", "running", "done")]
        self._claim = self._client.register_script(CLAIM)
        self._finish = self._client.register_script(FINISH)

    def clear(self) -> None:
        """Forget all."""
        self._client.delete(*self._keys)

    def insert_many(self, packages: Iterable[str]) -> None:
        """Many jobs, some thousand at a time."""
        pipeline = self._client.pipeline(transaction=False)
        for number, package in enumerate(packages):
            pipeline.hset(self._keys[1], str(number), package)
            pipeline.rpush(self._keys[0], number)
        pipeline.execute()

    def drain(self) -> int:
        """Work until nothing is left. Returns how many jobs that were."""
        count = 0
        while found := self._claim(keys=self._keys, args=[BATCH, "here"]):
            done: list[Any] = []
            for job_id, package in zip(*found, strict=True):
                done += [job_id, json.dumps(json.loads(package)["args"][0])]
            count += self._finish(keys=self._keys, args=done)
        return count

    def close(self) -> None:
        """Leave nothing behind."""
        self.clear()
        self._client.close()
