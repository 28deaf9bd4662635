"""Watching a cluster from outside: health probes and a service manager."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from stoker.cluster import board as place
from stoker.cluster.board import Board
from stoker.cluster.loops import LOOPS, Loops
from stoker.cluster.sentinel import ServiceManager
from stoker.conf import Settings
from stoker.management.health import judge_loops
from stoker.management.subcommand import ExitCode

from tests.cluster.clusters import (
    ProcessCluster,
    run_command,
    running_cluster,
    wait_for,
)
from tests.cluster.projects import Project
from tests.unit.cluster.parts import Clock

pytestmark = pytest.mark.usefixtures("db")


class Manager:
    """A service manager that listens on a NOTIFY_SOCKET."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "notify"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self.path))
        self._socket.setblocking(False)
        self.heard: list[str] = []

    def listen(self) -> list[str]:
        """Return all lines received so far."""
        while True:
            try:
                self.heard += self._socket.recv(4096).decode().splitlines()
            except BlockingIOError:
                return self.heard

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    manager = Manager(tmp_path)
    yield manager
    manager.close()


def health(folder: Path, *arguments: str, **environment: str) -> tuple[int, dict[str, Any]]:
    environment["TMPDIR"] = str(folder)
    done = run_command("stoker", "health", "--json", *arguments, environment=environment)
    return done.returncode, json.loads(done.stdout)


def is_said_to_hang(role: str, folder: Path) -> bool:
    """Return whether `health --local` names this role. Others may be late for a moment, too."""
    code, shape = health(folder, "--local", "--max-silence", "3")
    return code == 1 and role in shape["reason"]


def test_service_manager_and_health_follow_a_cluster_from_start_to_stop(
    tmp_path: Path, manager: Manager
) -> None:
    """Including a pusher or monitor that hangs while all processes exist."""
    environment = {
        "NOTIFY_SOCKET": str(manager.path),
        "WATCHDOG_USEC": "600000",
        "TMPDIR": str(tmp_path),  # do not see other clusters of this user
    }
    assert health(tmp_path, "--local")[0] == 1
    with running_cluster(tmp_path, environment=environment) as cluster:
        wait_for(lambda: "READY=1" in manager.listen(), cluster.tail)
        wait_for(lambda: manager.listen().count("WATCHDOG=1") >= 2, cluster.tail)
        code, shape = health(tmp_path, "--local")
        assert (code, shape["healthy"], len(shape["boards"])) == (0, True, 1)
        other = json.dumps({"default": str(tmp_path / "of_another_project.sqlite3")})
        code, shape = health(tmp_path, "--local", STOKER_TEST_DATABASES=other)
        assert (code, shape["boards"]) == (1, {}), "a cluster of another project does not count"
        for role in ("pusher", "monitor"):
            stuck = cluster.pause_at_rest(role)
            wait_for(lambda role=role: is_said_to_hang(role, tmp_path), cluster.tail)
            wait_for(lambda: health(tmp_path, "--max-silence", "3")[0] == 1, cluster.tail)
            stuck.resume()
            wait_for(lambda: health(tmp_path, "--max-silence", "3")[0] == 0, cluster.tail)
        assert "STOPPING=1" not in manager.listen()
        assert cluster.stop() == 0
    assert manager.listen().count("STOPPING=1") == 1
    assert health(tmp_path, "--local")[0] == 1, "no process of the cluster is left"


# -- as process 1 ---------------------------------------------------------------------------------

AS_PROCESS_1 = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
GATE = """
import os

if os.path.exists({gate!r}) and "STOKER_TRIAL" not in os.environ:
    with open({gate!r}) as gate:  # waits until the test opens it for writing
        gate.read()
"""


def may_have_process_1() -> bool:
    """Return whether a test may start a process in a PID namespace of its own."""
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*AS_PROCESS_1, "true"], check=False, capture_output=True).returncode == 0


needs_process_1 = pytest.mark.skipif(
    not may_have_process_1(), reason="unshare(1) may not create a PID namespace here"
)


def process_1(cluster: ProcessCluster) -> psutil.Process:
    """Return the process that has the id 1 in its namespace."""
    return wait_for(cluster.sentinel.children, cluster.tail)[0]


@needs_process_1
def test_sigterm_to_process_1_during_the_preflight_ends_it(tmp_path: Path) -> None:
    """The kernel drops SIGTERM to process 1 if the process has no handler."""
    pytest.importorskip("redis")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        options = {
            "command": [*AS_PROCESS_1, sys.executable, "-m", "django"],
            "BROKER": f"redis://127.0.0.1:{silent.getsockname()[1]}/0",
        }
        with running_cluster(tmp_path, **options) as cluster:
            silent.settimeout(None)
            connected, _ = silent.accept()  # the preflight asks the broker
            process_1(cluster).send_signal(signal.SIGTERM)
            wait_for(
                lambda: cluster.process.poll() is not None or "keeps trying" in cluster.text(),
                cluster.tail,
            )
            connected.close()
            assert "keeps trying" not in cluster.text()
            assert cluster.wait() == 0
    assert "started on" not in cluster.text()
    assert cluster.complaints() == []


@needs_process_1
def test_sigterm_to_process_1_during_a_reload_is_obeyed(tmp_path: Path) -> None:
    project = Project(tmp_path)
    gate = tmp_path / "gate"
    settings = project.folder / "project_settings.py"
    settings.write_text(GATE.format(gate=str(gate)) + settings.read_text())
    options = {
        "command": [*AS_PROCESS_1, *project.commands["manage.py"]],
        "environment": project.environment,
    }
    with running_cluster(tmp_path, **options) as cluster:
        wait_for(lambda: "started on" in cluster.text(), cluster.tail)
        os.mkfifo(gate)
        process_1(cluster).send_signal(signal.SIGHUP)
        with gate.open("w"):  # the new code is importing its settings
            process_1(cluster).send_signal(signal.SIGTERM)
        wait_for(
            lambda: cluster.process.poll() is not None or cluster.text().count("started on") == 2,
            cluster.tail,
        )
        assert cluster.text().count("started on") == 1
        assert cluster.wait() == 0


# -- without processes ----------------------------------------------------------------------------


def test_no_watchdog_message_is_sent_while_a_loop_hangs(
    tmp_path: Path, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr("stoker.cluster.loops.time", clock)
    settings = Settings(workers=1)
    board = Board.create(tmp_path / "board", 1, 1)
    loops = Loops(settings, board)
    environment = {"NOTIFY_SOCKET": str(manager.path), "WATCHDOG_USEC": "1"}
    told = ServiceManager(board, loops, environment)

    def turn_loops() -> None:
        for beat in LOOPS.values():
            board[beat] = clock.monotonic_ns()

    turn_loops()
    told.begin()
    told.turn()
    assert "READY=1" not in manager.listen(), "no loop has turned"
    clock.turn(1.0)
    turn_loops()
    told.turn()
    assert "READY=1" not in manager.listen(), "there is no worker"
    board.set_worker(0, place.PID, 1)
    told.turn()
    assert manager.listen().count("READY=1") == 1
    before = manager.listen().count("WATCHDOG=1")
    hangs_since_ns = board[place.MONITOR_BEAT_NS]
    for _ in range(round(loops.hang_seconds) + 1):
        clock.turn(1.0)
        turn_loops()
        board[place.MONITOR_BEAT_NS] = hangs_since_ns
        loops.all_turn()
    told.turn()
    assert manager.listen().count("WATCHDOG=1") == before
    turn_loops()
    told.turn()
    assert manager.listen().count("WATCHDOG=1") == before + 1
    told.stop(is_reload=True)
    assert {"RELOADING=1"} == {line for line in manager.listen() if line.startswith("RELOADING")}
    board.remove()


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"NOTIFY_SOCKET": "/nowhere"},
        {"NOTIFY_SOCKET": "@nobody", "WATCHDOG_USEC": "soon"},
        {"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"},
    ],
)
def test_service_manager_without_a_listener_raises_nothing(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    board = Board.create(tmp_path / "board", 1, 1)
    told = ServiceManager(board, Loops(Settings(), board), environment)
    told.begin()
    told.turn()
    told.stop(is_reload=False)
    board.remove()


def test_health_passes_if_the_loops_of_one_cluster_turn() -> None:
    good = {"pusher": 0.1, "monitor": 1.0, "scheduler": 0.0}
    assert judge_loops({"a": {**good, "pusher": 99.0}, "b": good}, 38).code is ExitCode.DONE
    verdict = judge_loops({"a": {**good, "scheduler": 99.0}}, 38)
    assert verdict.code is ExitCode.NO
    assert "scheduler" in verdict.sentence
    assert judge_loops({}, 38).code is ExitCode.NO
