"""How much memory processes of this host hold."""

from __future__ import annotations

import os
from pathlib import Path

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes(pid: int | None = None) -> int:
    """The resident memory of a process now; 0 where it can't be read.

    Args:
        pid: None = this process.
    """
    try:
        statm = Path(f"/proc/{pid or 'self'}/statm").read_text(encoding="ascii")
        return int(statm.split()[1]) * PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return 0
