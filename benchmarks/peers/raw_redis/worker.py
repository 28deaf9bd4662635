"""One hand-written loop: `python -m benchmarks.peers.raw_redis.worker`."""

import json
import os

from benchmarks.peers.side import first_line, nothing
from benchmarks.reference.redis import RedisReference

TASKS = {"nothing": nothing, "first_line": first_line}


def main() -> None:
    """Work until the process is ended."""
    reference = RedisReference(os.environ["PEER_REDIS_URL"])
    while True:
        while rows := reference.claim():
            reference.finish([(job_id, _run(package)) for job_id, package in rows])
        reference.wait()


def _run(text: bytes) -> str:
    package = json.loads(text)
    return json.dumps(TASKS[package["task"]](*package["args"]))


if __name__ == "__main__":
    main()
