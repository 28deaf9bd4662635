"""One hand-written loop: `python -m benchmarks.peers.raw.worker`."""

import json

from benchmarks.peers.raw.peer import connect
from benchmarks.peers.side import first_line, nothing
from benchmarks.reference import Row

TASKS = {"nothing": nothing, "first_line": first_line}


def main() -> None:
    """Work until the process is ended."""
    reference = connect()
    reference.listen()
    while True:
        while rows := reference.claim():
            reference.finish([_run(row) for row in rows])
        reference.wait()


def _run(row: Row) -> Row:
    job_id, text = row
    package = json.loads(text)
    return job_id, json.dumps(TASKS[package["task"]](*package["args"]))


if __name__ == "__main__":
    main()
