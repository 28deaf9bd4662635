"""Stoker without what Windows lacks: modules, functions and signals are hidden in a process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.sqlite]

PRETEND = """
# What is not Stoker's is imported before: it has other branches there, which need Windows.
import asyncio, concurrent.futures, getpass, logging.config, multiprocessing.connection
import multiprocessing.popen_fork, multiprocessing.reduction, multiprocessing.synchronize
import os, runpy, select, selectors, signal, socket, sqlite3, subprocess, sys, tempfile
import django.core.files.locks, django.core.management, django.db.backends.sqlite3.base
import django.test.utils, django.utils.autoreload

HIDDEN = {
    os: "fork forkpty register_at_fork getuid geteuid getgid sysconf setpgid killpg getpgid setsid "
    "pidfd_open mkfifo WNOHANG sched_getaffinity eventfd",
    signal: "SIGKILL SIGALRM SIGHUP SIGCONT SIGSTOP SIGTSTP SIGCHLD SIGURG SIGUSR1 SIGUSR2 "
    "setitimer ITIMER_REAL pthread_sigmask pthread_kill siginterrupt alarm SIG_BLOCK",
    socket: "AF_UNIX socketpair SO_REUSEPORT",
    select: "poll epoll",
}
for owner, names in HIDDEN.items():
    for name in names.split():
        if hasattr(owner, name):
            delattr(owner, name)
for name in ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "rich"):
    sys.modules[name] = None  # to import it fails
sys.platform = "win32"
"""
ENQUEUE = """
import django
django.setup()
from tests.app.tasks import add
from stoker.testing import drain
import stoker.admin, stoker.api.urls, stoker.dashboard.urls
result = add.enqueue(1, 2)
print(result.status)
drain()
result.refresh()
print(result.return_value)
"""
COMMAND = """
from django.core.management import execute_from_command_line
execute_from_command_line(sys.argv)
"""

SETTINGS = """
from tests.settings.sqlite import *
from tests.settings.sqlite import INSTALLED_APPS

INSTALLED_APPS = ["django.contrib.admin", "django.contrib.messages", *INSTALLED_APPS]
SILENCED_SYSTEM_CHECKS = ["admin.E403", "admin.E408", "admin.E409", "admin.E410"]
"""


@pytest.fixture
def run(tmp_path: Path):  # type: ignore[no-untyped-def] # a function of the tests
    (tmp_path / "settings_with_admin.py").write_text(SETTINGS)
    file = str(tmp_path / "shop.sqlite3")
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "settings_with_admin",
        "STOKER_TEST_DATABASES": json.dumps({"default": file}),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT), str(tmp_path)]),
    }

    def run(program: str, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", program, *words],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    migrated = run("import sys" + COMMAND, "migrate", "--verbosity", "0")
    assert migrated.returncode == 0, migrated.stderr
    return run


def test_enqueue_results_and_pages_need_nothing_that_windows_lacks(run) -> None:  # type: ignore[no-untyped-def] # as above
    done = run(PRETEND + ENQUEUE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["READY", "3"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("info",),
        ("tasks",),
        ("jobs", "list"),
        ("dead", "list"),
        ("clusters", "list"),
        ("schedules", "list"),
        ("workflows", "list"),
        ("doctor",),
        ("monitor", "--once"),
    ],
    ids=" ".join,
)
def test_command_works_on_windows(run, words: tuple[str, ...]) -> None:  # type: ignore[no-untyped-def] # as above
    done = run(PRETEND + COMMAND, "stoker", *words)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_run_says_where_a_cluster_can_run(run) -> None:  # type: ignore[no-untyped-def] # as above
    done = run(PRETEND + COMMAND, "stoker", "run")
    assert done.returncode == 2
    assert "run it in WSL or in a Linux container" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
