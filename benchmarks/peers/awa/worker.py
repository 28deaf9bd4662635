"""A worker of awa: `python -m benchmarks.peers.awa.worker`."""

import asyncio
import os
import signal

import awa

from benchmarks.peers import side
from benchmarks.peers.awa.jobs import QUEUE, FirstLine, Nothing, RunCount

CONCURRENCY = 100
POLL_MS = 20


async def main() -> None:
    """Run the two tasks until SIGTERM."""
    client = awa.AsyncClient(os.environ["PEER_POSTGRES_URL"])
    count = RunCount()

    @client.task(Nothing, queue=QUEUE)
    async def nothing(job: awa.Job) -> None:
        side.nothing(job.args.number)
        count.add_one()

    @client.task(FirstLine, queue=QUEUE)
    async def first_line(job: awa.Job) -> None:
        side.first_line(job.args.number)
        count.add_one()

    told_to_stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told_to_stop.set)
    await client.start([(QUEUE, CONCURRENCY)], poll_interval_ms=POLL_MS)
    await told_to_stop.wait()
    await client.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
