"""Ends a private server and removes its folder when the process that started it is gone.

Usage: python -m tests.servers.watchdog FOLDER

It asks for its parent time and again instead of waiting for the end of a pipe: processes that the
parent forks would keep the pipe open.
"""

import os
import shutil
import signal
import sys
import time
from pathlib import Path

from tests.servers.process import kill_family, works_in


def guard(folder: Path, parent: int) -> None:
    """Wait until the parent is gone or has cleaned up itself; clean up in the first case."""
    while os.getppid() == parent:
        if not folder.exists():
            return
        time.sleep(0.2)
    pid_file = folder / "server.pid"
    if pid_file.exists():
        pid = int(pid_file.read_text())
        if works_in(pid, folder):
            # For PostgreSQL "stop at once", which also gives its shared memory back.
            kill_family(pid, signal.SIGQUIT, patience_seconds=5)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    # Ctrl-C is for the parent: this process stays until it has cleaned up.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("ready", flush=True)
    guard(Path(sys.argv[1]), os.getppid())
