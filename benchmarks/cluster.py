"""A cluster as a user would run it: `manage.py stoker run`, with the default options."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from benchmarks.processes import family

ROOT = Path(__file__).resolve().parents[1]
PATIENCE_SECONDS = 120.0
LOOK_SECONDS = 0.005


class RunningCluster:
    """One cluster in separate processes.

    Args:
        folder: where it logs.
        module: what Python runs as the program.
    """

    def __init__(self, folder: Path, module: str = "django") -> None:
        self.log = folder / f"cluster-{time.monotonic_ns()}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, "stoker", "run"],
                cwd=ROOT,
                env={**os.environ, "DJANGO_SETTINGS_MODULE": "benchmarks.settings"},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def processes(self) -> list[psutil.Process]:
        """Return all its processes, the sentinel first."""
        return family(self.process.pid)

    def text(self) -> str:
        """Return its log."""
        return self.log.read_text(errors="replace")

    def wait_until(self, condition: Callable[[], object]) -> None:
        """Check every few milliseconds until the condition is true."""
        until = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            if self.process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"The cluster did not do its work:\n{self.text()[-3000:]}")
            time.sleep(LOOK_SECONDS)

    def stop(self) -> None:
        """Stop it gracefully."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(PATIENCE_SECONDS)


@contextmanager
def running_cluster(folder: Path, module: str = "django") -> Iterator[RunningCluster]:
    """Run a cluster in the block, and end it afterwards in any case."""
    cluster = RunningCluster(folder, module)
    try:
        yield cluster
        cluster.stop()
    finally:
        for process in reversed(cluster.processes()):
            process.kill()
        cluster.process.wait()
