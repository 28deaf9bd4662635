"""The ledger: an append-only file outside the queue's database, synced line by line.

Users write what they are about to do and the answers they got; tasks write when each attempt starts
and ends. Every line is one JSON object with these keys and those of its event:

    event   what happened
    at      seconds on the boot clock, which all processes of this host share
    wall    seconds since 1970
    pid     of the process that wrote it
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Line = dict[str, Any]


def now() -> float:
    """Return seconds since the host booted. All processes see the same clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Ledger:
    """Writes the file from one process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)

    def write(self, event: str, *, is_synced: bool = True, **facts: Any) -> Line:
        """Append one line with one system call, so that lines of many processes don't mix."""
        line = {"event": event, "at": now(), "wall": time.time(), "pid": os.getpid(), **facts}
        os.write(self._file, json.dumps(line, separators=(",", ":")).encode() + b"\n")
        if is_synced:
            os.fdatasync(self._file)
        return line

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class LedgerReader:
    """Reads the lines since the last read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def __iter__(self) -> Iterator[Line]:
        """Yield the complete lines that were written since the last read."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            yield json.loads(line)
