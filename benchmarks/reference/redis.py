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


Row = tuple[bytes, bytes]
"""Id of a job and its package."""


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
        self._count = 0

    def clear(self) -> None:
        """Delete all keys."""
        self._client.delete(*self._keys)

    def insert_many(self, packages: Iterable[str]) -> None:
        """Enqueue many jobs with one pipeline, numbered by this object."""
        pipeline = self._client.pipeline(transaction=False)
        for package in packages:
            self._count += 1
            pipeline.hset(self._keys[1], str(self._count), package)
            pipeline.rpush(self._keys[0], self._count)
        pipeline.execute()

    def claim(self) -> list[Row]:
        """Mark up to 100 jobs as running, and return them."""
        found = self._claim(keys=self._keys, args=[BATCH, "here"])
        return list(zip(*found, strict=True)) if found else []

    def finish(self, results: Iterable[tuple[bytes, str]]) -> int:
        """Mark jobs as done. Return their number."""
        return int(self._finish(keys=self._keys, args=[word for row in results for word in row]))

    def wait(self) -> None:
        """Sleep until a job waits, a second at most. The command leaves the first job in place."""
        ready = self._keys[0]
        self._client.blmove(ready, ready, 1, "LEFT", "LEFT")

    def drain(self) -> int:
        """Work until no job is left. Return the number of jobs."""
        count = 0
        while rows := self.claim():
            done = [
                (job_id, json.dumps(json.loads(package)["args"][0])) for job_id, package in rows
            ]
            count += self.finish(done)
        return count

    def close(self) -> None:
        """Delete all keys, and close the connection."""
        self.clear()
        self._client.close()
