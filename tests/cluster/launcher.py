"""Starts `manage.py` commands in a quarter of the time, and as themselves.

Half a second of processor time goes into importing Django, in every command that a test starts. One
process does that once, before any setting is read and any module of ours is imported; then each
command is forked from it, with an environment and an output of its own, and runs as `python -m
django` does from there on. A command that has to be started in another way is not for this.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BIGGEST_MESSAGE = 1 << 18
COMMAND = (sys.executable, "-m", "django")


class Launched:
    """A command that runs: what is used here of a `subprocess.Popen`."""

    def __init__(self, launcher: Launcher, pid: int) -> None:
        self._launcher = launcher
        self._end = os.pidfd_open(pid)
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._end], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(COMMAND, timeout or 0)
            self.returncode = self._launcher.ask({"ended": self.pid})
            os.close(self._end)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Launcher:
    """The process that has Django, and the line to it."""

    def __init__(self) -> None:
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.launcher", str(theirs.fileno())],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "default"},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is not for it
        )
        theirs.close()
        atexit.register(self.close)

    def start(
        self, arguments: Sequence[str], environment: Mapping[str, str], output: int, errors: int
    ) -> Launched:
        """Run `python -m django` with these arguments, in a session of its own."""
        said = {"arguments": list(arguments), "environment": dict(environment)}
        return Launched(self, self.ask(said, [output, errors]))

    def ask(self, said: dict[str, Any], files: Sequence[int] = ()) -> int:
        socket.send_fds(self._line, [json.dumps(said).encode()], list(files))
        return int(self._line.recv(BIGGEST_MESSAGE))

    def close(self) -> None:
        self._line.close()
        self._process.wait()


@cache
def launcher() -> Launcher:
    """The one of this process, which is started when it is first used."""
    return Launcher()


# -- the other side -------------------------------------------------------------------------------


def launch(line: socket.socket) -> None:
    """Fork what is asked for until nobody asks any more. Returns in each fork, too."""
    _import_django()
    gc.freeze()  # or each command would go through all of it when it ends
    while True:
        message, files, *_ = socket.recv_fds(line, BIGGEST_MESSAGE, 2)
        if not message:
            return
        said = json.loads(message)
        if "ended" in said:
            line.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(said["ended"], 0)[1]))
            continue
        pid = os.fork()
        if pid == 0:
            _become(said["arguments"], said["environment"], *files)
            return
        for file in files:
            os.close(file)
        line.send(b"%d" % pid)


def _import_django() -> None:
    """What every command of Django's own needs, and can be had without settings."""
    import asgiref.sync  # noqa: F401
    import django.contrib.auth.hashers
    import django.core.management
    import django.db.backends.postgresql.base
    import django.db.backends.sqlite3.base
    import django.db.migrations
    import django.db.models
    import django.test.utils
    import django.urls

    with contextlib.suppress(ImportError):  # the driver is compiled, where it is
        import django.db.backends.mysql.base  # noqa: F401
    with contextlib.suppress(ImportError):  # on newer Djangos there is none
        import django_tasks  # noqa: F401


def _become(arguments: list[str], environment: dict[str, str], output: int, errors: int) -> None:
    """From here on this process is the command's."""
    os.setsid()
    os.dup2(output, 1)
    os.dup2(errors, 2)
    os.close(output)
    os.close(errors)
    ours = _paths(os.environ)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = [*_paths(environment), *(path for path in sys.path if path not in ours)]
    time.tzset()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored behind `&`
    sys.argv = ["-m", *arguments]
    sys.orig_argv = [*COMMAND, *arguments]


def _paths(environment: Mapping[str, str]) -> list[str]:
    return environment.get("PYTHONPATH", "").split(os.pathsep)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as to_tests:
        launch(to_tests)
    if sys.argv[0] == "-m":
        runpy.run_module("django", run_name="__main__", alter_sys=True)
