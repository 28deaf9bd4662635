"""What a service manager is told that started the cluster as a service of ``Type=notify``: systemd,
or whatever else gives a ``NOTIFY_SOCKET``. The protocol is sd_notify(3): a datagram of lines.

::

    READY=1       every loop has turned once, and a worker is there
    WATCHDOG=1    every loop still turns: half as often again as WATCHDOG_USEC asks for
    RELOADING=1   it stops, to start again with fresh code: READY=1 follows
    STOPPING=1    it stops for good
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress

from . import board as place
from .board import Board
from .watch import Watch


class ServiceManager:
    """Who is told how the cluster is; nobody, where no socket is given.

    Args:
        environment: of the process, with NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID.
    """

    def __init__(
        self, board: Board, watch: Watch, environment: Mapping[str, str] = os.environ
    ) -> None:
        self._board = board
        self._watch = watch
        self._address = environment.get("NOTIFY_SOCKET", "")
        self._watchdog_seconds = _watchdog_seconds(environment)
        self._first_beats: dict[str, int] = {}
        self._is_ready = False
        self._watchdog_at = 0.0

    def begin(self) -> None:
        """All processes were started."""
        self._first_beats = {role: self._board[beat] for role, beat in self._watch.beats.items()}

    def turn(self) -> None:
        """Tell what is due. Called by the sentinel's loop: if that hangs, nothing is told."""
        if not self._address:
            return
        if not self._is_ready and self._have_begun():
            self._is_ready = True
            self._tell("READY=1", "STATUS=The cluster runs.")
        now = time.monotonic()
        if self._watchdog_seconds and now >= self._watchdog_at and self._watch.all_turn():
            self._watchdog_at = now + self._watchdog_seconds / 3
            self._tell("WATCHDOG=1")

    def stop(self, *, is_reload: bool) -> None:
        """The cluster stops."""
        self._is_ready = True  # it is not going to be
        if is_reload:
            self._tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
        else:
            self._tell("STOPPING=1", "STATUS=Running jobs may finish.")

    def _have_begun(self) -> bool:
        have_turned = all(
            self._board[self._watch.beats[role]] != beat for role, beat in self._first_beats.items()
        )
        workers = range(self._board[place.WORKERS])
        return have_turned and any(self._board.worker(number, place.PID) for number in workers)

    def _tell(self, *lines: str) -> None:
        if not self._address:
            return
        address = self._address
        if address.startswith("@"):  # in the abstract namespace
            address = "\0" + address[1:]
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
            line.setblocking(False)
            line.sendto("\n".join(lines).encode(), address)


def _watchdog_seconds(environment: Mapping[str, str]) -> float:
    """How often a sign of life is asked for of this process; 0 = never."""
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0
    try:
        return int(environment.get("WATCHDOG_USEC", "0")) / 1e6
    except ValueError:
        return 0.0
