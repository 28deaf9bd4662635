"""Start and end the sentinel's child processes."""

from __future__ import annotations

import ctypes
import gc
import importlib
import io
import logging
import mmap
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from copy import copy
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NoReturn

from django.core.cache import caches

from stoker.cluster.channel import Closed, Control
from stoker.signals import post_spawn, pre_exit

from .board import Board
from .plan import Plan


def resident_bytes(pid: int | None = None) -> int:
    """Return the resident memory of a process; 0 if it cannot be read.

    Args:
        pid: None = this process.
    """
    try:
        statm = Path(f"/proc/{pid or 'self'}/statm").read_text(encoding="ascii")
        return int(statm.split()[1]) * mmap.PAGESIZE
    except (OSError, ValueError, IndexError):
        return 0


ORPHANED = 70
"""Exit code of a process whose sentinel has died."""
LAST_WORDS_SECONDS = 2.0
"""How long logs and reports may take to be written when a process ends."""

STOPPING = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
DEFAULTS = {signal.SIGINT: signal.default_int_handler}

ENTRANCES = {
    "pusher": "stoker.cluster.pusher.pusher",
    "monitor": "stoker.cluster.monitor.monitor",
    "scheduler": "stoker.cluster.scheduler.scheduler",
    "worker": "stoker.cluster.worker.worker",
    "core": "stoker.cluster.core",
}
"""Role -> the module with the ``main(child)`` of that process."""

_sentinel_board: list[Board] = []
"""The sentinel's board. A forked child closes it and maps the one it receives: otherwise processes
that a task forks would hold its lock."""
_sentinel_ends: set[socket.socket] = set()
"""The sentinel's ends of all control lines. A forked child closes them, so that a line breaks when
the sentinel dies."""


class Child:
    """The context of a child process."""

    def __init__(
        self, role: str, number: int, incarnation: int, plan: Plan, control: Control
    ) -> None:
        self.role = role
        self.number = number
        self.incarnation = incarnation
        self.plan = plan
        self.control = control
        self.board = self._receive_board()

    def part(self, role: str, control: Control) -> Child:
        """Return the context of a role that runs in a thread of this process."""
        part = copy(self)
        part.role, part.control = role, control
        return part

    @property
    def name(self) -> str:
        return f"{self.role} {self.number}" if self.role == "worker" else self.role

    def _receive_board(self) -> Board:
        """Receive the board, which is the first message from the sentinel."""
        from pathlib import Path

        ((_, path), descriptor), *_ = self.control.receive(block=True, most=1)
        assert descriptor is not None
        return Board(descriptor, Path(path))


class Started:
    """A child process, from the sentinel's point of view."""

    def __init__(self, role: str, number: int, incarnation: int, plan: Plan, board: Board) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        _sentinel_ends.add(ours)
        _sentinel_board[:] = [board]
        self.role = role
        self.number = number
        self.incarnation = incarnation
        self.control = Control(ours)
        self.is_deaf = False
        """The child has closed its end of the line: it has ended or is about to."""
        self.started = time.monotonic()
        self.is_ready = False
        """Whether this worker has started. Other processes do not say so."""
        context = multiprocessing.get_context(start_method(plan))
        self.process: BaseProcess = context.Process(  # type: ignore[attr-defined] # of every context
            target=run_child,
            args=(role, number, incarnation, plan, theirs),
            name=f"{role} {number}" if role == "worker" else role,
            daemon=False,
        )
        try:
            with theirs:
                self.process.start()
            self.tell("board", str(board.path), descriptor=board.descriptor)
        except OSError:  # a child that has started exits when the line is closed
            _sentinel_ends.discard(ours)
            self.control.close()
            raise
        assert self.process.pid
        self.pid = self.process.pid

    def tell(self, *message: Any, descriptor: int | None = None) -> None:
        """Send a message. A dying child is noticed by its exit, not here."""
        try:
            self.control.send(*message, descriptor=descriptor)
        except Closed:
            self.is_deaf = True

    def heard(self) -> list[tuple[Any, ...]]:
        """Return the child's messages since the last call."""
        try:
            return [message for message, _ in self.control.receive(block=False)]
        except Closed:
            self.is_deaf = True
            return []

    def tell_the_rest(self) -> None:
        """Send the rest of queued messages."""
        if self.control.has_outgoing:
            try:
                self.control.flush()
            except Closed:
                self.is_deaf = True

    def kill(self) -> None:
        if self.process.is_alive():
            self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        """Send a signal to the process; to a worker, also to all processes that its tasks have
        started."""
        if self.role == "worker" and self._signal_group(number):
            return
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill_children(self) -> None:
        """Kill the processes that tasks of a dead worker have started, because the tasks will be
        retried."""
        if self.role == "worker":
            self._signal_group(signal.SIGKILL)

    def _signal_group(self, number: int) -> bool:
        """Return whether this worker has a process group. Creating it is the worker's first
        step."""
        try:
            os.killpg(self.pid, number)
        except OSError:
            return False
        return True

    def bury(self) -> int:
        """Release the resources of a dead child. Return its exit code (negative = signal)."""
        self.process.join()
        code = self.process.exitcode
        self.process.close()
        _sentinel_ends.discard(self.control.socket)
        self.control.close()
        return code if code is not None else 0


def start_method(plan: Plan) -> str:
    """Return the start method of processes.

    ``fork`` shares loaded code and is safe here: the sentinel has one thread and no connection.
    Outside of Linux, system libraries may not survive it.
    """
    return plan.settings.start_method or ("fork" if sys.platform == "linux" else "spawn")


def drop_caches() -> None:
    """Close this process's caches, which may have connections that a forked process must not share.
    Drop the objects, too: that of pylibmc keeps its connections open until then."""
    with suppress(Exception):  # one that cannot be closed is dropped, too
        caches.close_all()
    for alias in caches:
        with suppress(AttributeError):  # it was not used
            del caches[alias]


def run_child(
    role: str, number: int, incarnation: int, plan: Plan, endpoint: socket.socket
) -> None:
    """Run a child process. This is its first function."""
    _leave_the_parent(role)
    _set_up(plan)
    from .console import log_to_console  # imports models, which need Django's set-up

    if plan.console:
        log_to_console(plan.log_level, as_json=plan.logs_json)

    try:
        child = Child(role, number, incarnation, plan, Control(endpoint))
        post_spawn.send_robust(Child, role=role, number=number, backend=plan.alias)
        main = importlib.import_module(ENTRANCES[role]).main
        gc.freeze()  # otherwise every garbage collection would traverse the loaded code
        main(child)
        say_goodbye(LAST_WORDS_SECONDS)
    except Closed:
        leave(ORPHANED)


def _set_up(plan: Plan) -> None:
    """Set up Django. A forked process inherits that, except for the threads of the project's log
    handlers. A second set-up would make copies of pages that it shares."""
    import django
    from django.conf import global_settings, settings

    has_own_logs = settings.LOGGING or settings.LOGGING_CONFIG != global_settings.LOGGING_CONFIG
    if start_method(plan) != "fork" or has_own_logs:
        django.setup()


def leave(code: int) -> NoReturn:
    """End this process now, without waiting for threads or running clean-up code.

    Logs and output are still written, within a time limit, because a thread may hold the lock of a
    log or the reader of a pipe may hang.
    """
    last_resort = threading.Timer(LAST_WORDS_SECONDS, os._exit, [code])
    last_resort.daemon = True
    last_resort.start()
    for child in multiprocessing.active_children():
        if child.daemon:  # as Python does at exit, for executors that a task has left open
            child.terminate()
    if code != ORPHANED:  # an orphan must exit at once
        say_goodbye(LAST_WORDS_SECONDS / 2)
    with suppress(Exception):  # a handler may be the project's
        logging.shutdown()
    _flush_output()
    os._exit(code)


def leave_forked_child() -> NoReturn:
    """End a process that a task has forked and that returned from the task.

    The connections, threads and children belong to the worker and are not touched.
    """
    last_resort = threading.Timer(LAST_WORDS_SECONDS, os._exit, [1])
    last_resort.daemon = True
    last_resort.start()
    if sys.exc_info()[0] is not None:
        sys.excepthook(*sys.exc_info())
    _flush_output()
    os._exit(0 if sys.exc_info()[0] is None else 1)


def say_goodbye(seconds: float) -> None:
    """Let receivers of ``pre_exit`` send their remaining data."""
    pre_exit.send_robust(Child, seconds=seconds)


def _flush_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # the stream may be closed, or None
            stream.flush()


def _leave_the_parent(role: str) -> None:
    """Drop the descriptors and signal handlers inherited from the sentinel."""
    if role == "worker":
        _lead_a_group()
    for end in list(_sentinel_ends):
        end.close()
    for board in _sentinel_board:
        board.close()
    _sentinel_ends.clear()
    _sentinel_board.clear()
    signal.set_wakeup_fd(-1)
    _leave_stopping_to_the_sentinel()
    signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # a killed process does not flush its buffers
    if sys.platform == "linux":
        _die_with_parent(role)
    if role != "worker":
        _share_one_heap()


def _lead_a_group() -> None:
    """Create a process group for this process and the processes of its tasks, so that all can be
    killed together."""
    with suppress(OSError):  # it leads a session, and so a group
        os.setpgid(0, 0)


def _leave_stopping_to_the_sentinel() -> None:
    """Make stop signals do nothing in this process.

    They are not ignored, because processes started by tasks would inherit that, and ``terminate()``
    must work there.
    """

    def listen_again() -> None:
        for number in STOPPING:
            signal.signal(number, DEFAULTS.get(number, signal.SIG_DFL))

    for number in STOPPING:
        signal.signal(number, _do_nothing)
    os.register_at_fork(after_in_child=listen_again)


def _do_nothing(_number: int, _frame: Any) -> None:
    """Signal handler that does nothing: the signal only interrupts system calls."""


def _share_one_heap() -> None:
    """Let all threads of this process allocate from one heap (glibc's mallopt(3)). Otherwise each
    thread would keep memory that the others cannot use. Python's lock orders them anyway."""
    most_arenas = -8
    with suppress(AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(most_arenas, 1)


def _die_with_parent(role: str) -> None:
    """Let the kernel kill this process when the sentinel dies (prctl(2))."""
    set_parent_death_signal, set_name = 1, 15
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(set_parent_death_signal, signal.SIGKILL, 0, 0, 0)
    libc.prctl(set_name, f"stoker-{role}".encode()[:15], 0, 0, 0)
