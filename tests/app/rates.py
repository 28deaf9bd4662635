"""A task that records when it started."""

import os
import threading
import time
from contextlib import suppress

from stoker import task
from stoker.cluster import wire
from stoker.cluster.worker import worker

_asked = threading.local()


def _note_and_ask(permit_ns: int) -> bool:
    """Note the time of this check: the machine may delay the process afterwards, but the job counts
    as started now if its permit is valid."""
    _asked.at_ns = time.monotonic_ns()
    return wire.is_over(permit_ns)


vars(worker).update(is_over=_note_and_ask)


@task
def write_start(path: str, seconds: float = 0.0) -> None:
    """Record the start on a clock that is the same for all processes of a host."""
    start_ns = time.monotonic_ns()
    with suppress(AttributeError):  # if no permit was checked
        start_ns = _asked.at_ns
        del _asked.at_ns
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(file, f"{start_ns}\n".encode())
    os.close(file)
    time.sleep(seconds)
