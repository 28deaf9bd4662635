"""A worker of pgqueuer: `python -m benchmarks.peers.pgqueuer.worker BATCH`.

`pgq run` does the same; its command line does not work with every version of typer.
"""

import logging
import os
import sys

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.models import Job

from benchmarks.peers import side


async def main() -> None:
    """Run the two tasks."""
    logging.getLogger("pgqueuer").setLevel(logging.WARNING)
    connection = await asyncpg.connect(os.environ["PEER_POSTGRES_URL"])
    queuer = PgQueuer.from_asyncpg_connection(connection)

    @queuer.entrypoint(side.NOTHING)
    async def nothing(job: Job) -> None:
        side.nothing(_number(job))

    @queuer.entrypoint(side.FIRST_LINE)
    async def first_line(job: Job) -> None:
        side.first_line(_number(job))

    await queuer.run(batch_size=int(sys.argv[1]))


def _number(job: Job) -> int:
    assert job.payload is not None
    return int(job.payload)


if __name__ == "__main__":
    uvloop.run(main())
