"""The core of a small cluster: pusher, monitor and scheduler as threads of one process (``stoker
run --single``).

The sentinel forks this process and the workers, and has no threads, so no process is forked from
one with threads. An error in any of the three ends this process, and the sentinel starts another.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable
from copy import deepcopy

from django.db import connections

from .channel import Control, Stream, socket_pair
from .monitor.monitor import Monitor
from .process import Child, leave
from .pusher.pusher import Pusher
from .scheduler.scheduler import Scheduler


def main(child: Child) -> None:
    Core(child).run()


class Core:
    """Pusher, monitor and scheduler of one cluster. The pusher runs in the main thread."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._alias = child.plan.settings.database
        self._monitor: Monitor

    def run(self) -> None:
        use_own_settings(self._alias)
        pusher = Pusher(self._child)
        monitor = RoleThread(self._child, "monitor", self._make_monitor)
        scheduler = RoleThread(self._child, "scheduler", self._make_scheduler)
        one, other = socket_pair()
        pusher.monitor.meet(Stream(one), ())
        with other:
            monitor.control.send("pusher", descriptor=other.fileno())
        monitor.start()
        scheduler.start()
        pusher.run()
        scheduler.stop()
        monitor.stop()
        pusher.broker.close()

    def _make_monitor(self, child: Child) -> Monitor:
        use_own_settings(self._alias)
        self._monitor = Monitor(child)
        return self._monitor

    def _make_scheduler(self, child: Child) -> Scheduler:
        """Return the scheduler. It shares the monitor's thread for calls of project code, because
        there is one for each process."""
        scheduler = Scheduler(child)
        scheduler.callbacks = self._monitor.callbacks
        return scheduler


class RoleThread:
    """Run the monitor or the scheduler in a thread, controlled like a child of the sentinel.

    Args:
        child: the context of the process.
        make: creates the monitor or scheduler. Called in the thread, to which the connections to
            the database belong.
    """

    def __init__(
        self, child: Child, role: str, make: Callable[[Child], Monitor | Scheduler]
    ) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.control = Control(ours)
        self._child = child.part(role, Control(theirs))
        self._make = make
        self._is_made = threading.Event()
        self._thread = threading.Thread(target=self._run, name=role, daemon=True)

    def start(self) -> None:
        """Start the thread, and wait until it has created its monitor or scheduler."""
        self._thread.start()
        self._is_made.wait()

    def stop(self) -> None:
        """Ask the role to exit, and wait until it has."""
        self.control.send("exit")
        self._thread.join()
        self.control.close()
        self._child.control.close()

    def _run(self) -> None:
        try:
            made = self._make(self._child)
            self._is_made.set()
            made.run()
            connections.close_all()  # those of this thread
        except BaseException:  # noqa: BLE001 - the sentinel starts all three again
            sys.excepthook(*sys.exc_info())
            leave(1)


def use_own_settings(alias: str) -> None:
    """Give this thread's connection a separate copy of its settings, which threads otherwise share.
    Settings of the pusher and the monitor make PostgreSQL plan in a way that does not suit
    upkeep."""
    connection = connections[alias]
    connection.settings_dict = deepcopy(connection.settings_dict)
