"""A task that writes down when it started."""

import os
import threading
import time
from contextlib import suppress

from stoker import task
from stoker.cluster import wire
from stoker.cluster.worker import worker

_asked = threading.local()


def _note_and_ask(permit_ns: int) -> bool:
    """From here on the machine may have no time for this process, and nobody can help it: the job
    has been started if its permit is good now."""
    _asked.at_ns = time.monotonic_ns()
    return wire.is_over(permit_ns)


vars(worker).update(is_over=_note_and_ask)


@task
def write_start(path: str, seconds: float = 0.0) -> None:
    """The clock is the same for all processes of a host."""
    start_ns = time.monotonic_ns()
    with suppress(AttributeError):  # nobody has asked
        start_ns = _asked.at_ns
        del _asked.at_ns
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(file, f"{start_ns}\n".encode())
    os.close(file)
    time.sleep(seconds)
