"""One process of the reference: `python -m benchmarks.reference NAME drain|serve`.

It says "ready" when it is connected, and waits for a line. ``drain`` then works until no job is
left, says "done", and waits again; ``serve`` works until it is ended, its results being the moments
at which it began with each job, on the monotonic clock.
"""

import json
import os
import sys
import time
from typing import Any

from benchmarks.reference import Reference, Row, reference_for


def main() -> None:
    """Run the command line."""
    name, way = sys.argv[1:]
    reference = reference_for(name, json.loads(os.environ["STOKER_BENCH_DATABASE"]))
    if way == "serve":
        reference.listen()
    print("ready", flush=True)
    sys.stdin.readline()
    {"drain": _drain, "serve": _serve}[way](reference)


def _drain(reference: Reference) -> None:
    while rows := reference.claim():
        reference.finish([_run(row, _nothing) for row in rows])
    print("done", flush=True)
    sys.stdin.readline()  # stays open, so that the server's work for it can be counted


def _serve(reference: Reference) -> None:
    while True:
        while rows := reference.claim():
            reference.finish([_run(row, _first_line) for row in rows])
        reference.wait()


def _run(row: Row, function: Any) -> Row:
    job_id, package = row
    return job_id, json.dumps(function(*json.loads(package)["args"]))


def _nothing(number: int) -> int:
    return number


def _first_line(number: int) -> int:
    return time.monotonic_ns()


main()
