"""The app that `procrastinate worker` loads, with the two tasks."""

import os

import procrastinate

from benchmarks.peers import side

app = procrastinate.App(
    connector=procrastinate.PsycopgConnector(conninfo=os.environ["PEER_POSTGRES_URL"])
)


@app.task
async def nothing(number: int) -> int:
    """See side.py."""
    return side.nothing(number)


@app.task
async def first_line(number: int) -> int:
    """See side.py."""
    return side.first_line(number)
