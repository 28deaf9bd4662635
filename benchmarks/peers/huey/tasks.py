"""What `huey_consumer` loads: huey on PostgreSQL, and the two tasks."""

import os

from huey import PostgresHuey

from benchmarks.peers import side

huey = PostgresHuey("peer", dsn=os.environ["PEER_POSTGRES_URL"])


@huey.task()
def nothing(number: int) -> int:
    """See side.py."""
    return side.nothing(number)


@huey.task()
def first_line(number: int) -> int:
    """See side.py."""
    return side.first_line(number)
