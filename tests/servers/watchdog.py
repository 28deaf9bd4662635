"""Ends a private server and removes its folder when the process that started it has ended.

Usage: python -m tests.servers.watchdog FOLDER

It polls for its parent instead of waiting for the end of a pipe: processes forked by the parent
would keep the pipe open.
"""

import os
import shutil
import signal
import sys
import time
from pathlib import Path

from tests.servers.process import kill_family, works_in


def guard(folder: Path, parent: int) -> None:
    """Wait until the parent has ended or cleaned up, and clean up in the first case."""
    while os.getppid() == parent:
        if not folder.exists():
            return
        time.sleep(0.2)
    pid_file = folder / "server.pid"
    if pid_file.exists():
        pid = int(pid_file.read_text())
        if works_in(pid, folder):
            # PostgreSQL then stops at once, and also frees its shared memory.
            kill_family(pid, signal.SIGQUIT, patience_seconds=5)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    # Ctrl-C is for the parent. This process stays until it has cleaned up.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("ready", flush=True)
    guard(Path(sys.argv[1]), os.getppid())
