"""A task that writes down when it really starts."""

import os
import time

from stoker import task


@task
def write_start(path: str, seconds: float = 0.0) -> None:
    """First of all read the clock, which is the same for all processes of a host."""
    now_ns = time.monotonic_ns()
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(file, f"{now_ns}\n".encode())
    os.close(file)
    time.sleep(seconds)
