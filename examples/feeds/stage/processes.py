"""Processes that the demo starts, watches and stops, and the signals that it handles."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parents[3]
MANAGE = Path(__file__).resolve().parents[1] / "manage.py"
STOP_SECONDS = 40.0
"""Longer than the SHUTDOWN_SECONDS of a cluster, so that the cluster can stop normally."""
LAST_LINES = 15
ENVIRONMENT = {
    "PYTHONUNBUFFERED": "1",
    # A proxy cannot reach feeds on loopback.
    "NO_PROXY": ",".join(filter(None, [os.environ.get("NO_PROXY"), "127.0.0.1"])),
}


class Interrupted(Exception):
    """Ctrl-C was pressed, or a similar signal was received."""


class Died(Exception):
    """A process ended unexpectedly."""


class Interruption:
    """Records Ctrl-C until it is asked for, so that it never interrupts the start of a process."""

    def __init__(self) -> None:
        self.count = 0
        self._event = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._note)

    def pause(self, seconds: float) -> None:
        """Sleep. Raise Interrupted as soon as the user stops the demo."""
        if self._event.wait(seconds):
            raise Interrupted

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        self._event.set()


class Process:
    """A ``manage.py`` process of the feed importer, with its output in a file. It has its own
    process group, so that Ctrl-C reaches only the demo, which then stops the process."""

    def __init__(self, name: str, arguments: Sequence[str], log: Path) -> None:
        self.name = name
        self.log = log
        with log.open("wb") as output:
            self._popen = subprocess.Popen(
                [sys.executable, str(MANAGE), *arguments],
                cwd=ROOT,
                env={**os.environ, **ENVIRONMENT},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
            )

    @property
    def exit_code(self) -> int | None:
        """Exit code, or None while the process runs; negative = the signal that killed it."""
        return self._popen.poll()

    def check(self) -> None:
        """Raise Died, with the end of its log, if the process has ended."""
        if self.exit_code is not None:
            how = f"exit code {self.exit_code}"
            if self.exit_code < 0:
                how = signal.Signals(-self.exit_code).name
            raise Died(f"The {self.name} died ({how}). Its last words:\n{self.last_words()}")

    def told(self) -> str:
        """Return the output up to now."""
        return self.log.read_text(errors="replace")

    def last_words(self) -> str:
        lines = self.told().splitlines()[-LAST_LINES:]
        return "\n".join(f"    {line}" for line in lines) or "    (none)"

    def stop(self, interruption: Interruption, patience_seconds: float) -> None:
        """Stop the process and wait. Kill it if it takes too long, or at the next Ctrl-C."""
        count, until = interruption.count, time.monotonic() + patience_seconds
        if self.exit_code is None:
            self._popen.terminate()
        while self.exit_code is None:
            if interruption.count > count or time.monotonic() > until:
                self._kill_group()
            time.sleep(0.02)
        # Its children usually end with it. Kill those that are left.
        self._kill_group()

    def _kill_group(self) -> None:
        try:
            os.killpg(self._popen.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
