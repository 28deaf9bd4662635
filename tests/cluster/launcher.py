"""Starts `manage.py` commands without importing Django and Stoker again for each of them.

A launcher is a process that imports Django once, before any setting is read, and forks a process
for each command. The fork gets its own environment and output, and then runs like `python -m
django`. A prepared launcher has also set up Django with the settings of the tests and imported the
modules that commands and clusters use. Its commands read the settings again in their own
environment. Other tests start commands without a launcher and so test their imports: projects with
a `manage.py` (projects.py), other settings, the demo, the wheel.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BIGGEST_MESSAGE = 1 << 18
COMMAND = (sys.executable, "-m", "django")
SETTINGS = "DJANGO_SETTINGS_MODULE"
OPTIONS = "STOKER_TEST_OPTIONS"
READ_WHEN_SET_UP = ("STOKER_TEST_MISCHIEF", "STOKER_CRASH")
"""Variables that `django.setup()` reads (tests/app/apps.py, tests/crash), so a prepared launcher
cannot be used."""
PREPARED = (
    "stoker.brokers.orm",
    "stoker.cluster",
    "stoker.dead_letters",
    "stoker.guards",
    "stoker.jobs",
    "stoker.management",
    "stoker.schedules",
    "stoker.store",
    "stoker.workflows",
)
"""The packages of which a prepared launcher imports every module."""


class Launched:
    """A running command, with the methods of `subprocess.Popen` that tests use."""

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
    """The process that has imported Django, and the socket to it.

    Args:
        is_prepared: whether it has also set up Django and imported Stoker.
        path: the PYTHONPATH of the process.
    """

    def __init__(self, *, is_prepared: bool, path: str) -> None:
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.cluster.launcher", str(theirs.fileno())]
        self._process = subprocess.Popen(
            [*command, *(["prepared"] if is_prepared else [])],
            cwd=ROOT,
            env={
                **{name: value for name, value in os.environ.items() if name != OPTIONS},
                "PYTHONPATH": path,
                "PYTHONWARNINGS": "default",
            },
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # it must not get Ctrl-C
        )
        theirs.close()
        atexit.register(self.close)

    def start(
        self, arguments: Sequence[str], environment: Mapping[str, str], output: int, errors: int
    ) -> Launched:
        """Run `python -m django` with these arguments in a new session."""
        said = {"arguments": list(arguments), "environment": dict(environment)}
        return Launched(self, self.ask(said, [output, errors]))

    def ask(self, said: dict[str, Any], files: Sequence[int] = ()) -> int:
        socket.send_fds(self._line, [json.dumps(said).encode()], list(files))
        return int(self._line.recv(BIGGEST_MESSAGE))

    def close(self) -> None:
        self._line.close()
        self._process.wait()


def launcher_for(environment: Mapping[str, str]) -> Launcher:
    """Return the launcher of a command with this environment, and start it at its first use."""
    path = environment.get("PYTHONPATH", "")
    if environment.get(SETTINGS) == os.environ.get(SETTINGS) and not any(
        name in environment for name in READ_WHEN_SET_UP
    ):
        return _launcher(is_prepared=True, path=path)
    return _launcher(is_prepared=False, path=str(ROOT))


@cache
def _launcher(*, is_prepared: bool, path: str) -> Launcher:
    return Launcher(is_prepared=is_prepared, path=path)


# -- the other side -------------------------------------------------------------------------------


def launch(line: socket.socket, *, is_prepared: bool) -> None:
    """Fork a process for each command until the tests close the socket, and return in each fork.
    Then kill the commands that still run: the process of the tests was killed."""
    _import_django()
    if is_prepared:
        _set_up()
    gc.freeze()  # else the garbage collector would visit all of it in each command
    running: set[int] = set()
    while True:
        message, files, *_ = socket.recv_fds(line, BIGGEST_MESSAGE, 2)
        if not message:
            for pid in running:
                os.kill(pid, signal.SIGKILL)
            return
        said = json.loads(message)
        if "ended" in said:
            line.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(said["ended"], 0)[1]))
            running.discard(said["ended"])
            continue
        pid = os.fork()
        if pid == 0:
            _become(said["arguments"], said["environment"], *files)
            if is_prepared:
                _read_settings_again()
            return
        running.add(pid)
        for file in files:
            os.close(file)
        line.send(b"%d" % pid)


def _import_django() -> None:
    """Import what every Django command needs and what needs no settings."""
    import asgiref.sync  # noqa: F401
    import django.contrib.auth.hashers
    import django.core.management
    import django.db.backends.postgresql.base
    import django.db.backends.sqlite3.base
    import django.db.migrations
    import django.db.models
    import django.test.utils
    import django.urls
    from django.core.exceptions import ImproperlyConfigured

    with contextlib.suppress(ImproperlyConfigured):  # the driver may be missing
        import django.db.backends.mysql.base  # noqa: F401
    with contextlib.suppress(ImportError):  # newer versions of Django do not need it
        import django_tasks  # noqa: F401


def _set_up() -> None:
    import django

    django.setup()
    for name in PREPARED:
        package = import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            import_module(module.name)


def _read_settings_again() -> None:
    """Read the settings in the environment of this process, as if Django had just been set up."""
    from django.conf import Settings, settings
    from django.core.signals import setting_changed
    from django.db import connections
    from django.utils.functional import empty

    apps = list(settings.INSTALLED_APPS)
    for name in [name for name in sys.modules if name.startswith("tests.settings.")]:
        del sys.modules[name]
    settings._wrapped = empty
    assert list(settings.INSTALLED_APPS) == apps
    for alias in connections:
        with contextlib.suppress(AttributeError):
            del connections[alias]
    connections._settings = None
    vars(connections).pop("settings", None)
    setting_changed.send(sender=Settings, setting="TASKS", value=settings.TASKS, enter=True)


def _become(arguments: list[str], environment: dict[str, str], output: int, errors: int) -> None:
    """Turn this process into the command's process."""
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
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell ignores it for background processes
    sys.argv = ["-m", *arguments]
    sys.orig_argv = [*COMMAND, *arguments]


def _run_django() -> None:
    """Run the command and exit without freeing shared memory, which saves 40 ms."""
    code = 0
    try:
        runpy.run_module("django", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        code = end.code or 0
    threading._shutdown()  # type: ignore[attr-defined] # what Python does when it ends
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def _paths(environment: Mapping[str, str]) -> list[str]:
    return environment.get("PYTHONPATH", "").split(os.pathsep)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as to_tests:
        launch(to_tests, is_prepared="prepared" in sys.argv[2:])
    if sys.argv[0] == "-m":
        _run_django()
