"""A server for one test: with its own folder and port, removed afterwards."""

import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from tests.servers.process import kill_family, wait_until

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 180
STOP_SECONDS = 30
# Linux assigns ports from 32768 on: a lower one stays free between our check and start.
PORTS = range(20_000, 32_000)


class ServerUnavailableError(Exception):
    """A server that cannot be used here. The summary of the tests shows the message."""


class NotInstalledError(ServerUnavailableError):
    """A server whose programs are not on this machine."""


_claims: list[socket.socket] = []
"""One socket for each port that was found, open as long as this process lives."""


def free_port() -> int:
    """Return a port without a listener that no other caller here gets."""
    for port in random.SystemRandom().sample(PORTS, 100):
        claim = socket.socket(socket.AF_UNIX)
        with socket.socket() as probe:
            try:
                claim.bind(f"\0stoker-test-port-{port}")
                probe.bind(("127.0.0.1", port))
            except OSError:
                claim.close()
                continue
        _claims.append(claim)
        return port
    raise ServerUnavailableError("no free port was found")


def find_program(*names: str, folders: Sequence[Path] = ()) -> str:
    """Return the first of these programs on PATH or in the folders of servers."""
    places = [os.environ.get("PATH", ""), *map(str, folders), "/usr/sbin", "/usr/local/sbin"]
    for name in names:
        if found := shutil.which(name, path=os.pathsep.join(places)):
            return found
    raise NotInstalledError(f"{names[0]} is not installed")


class PrivateServer:
    """A context manager around one server.

    It can be stopped, killed and started again, on the same port and with the same data. If the
    process that entered it dies, a watchdog ends the server and removes its folder.
    """

    name: ClassVar[str]
    refuses_root: ClassVar[bool] = True
    # Signals for stop(mode=...).
    modes: ClassVar[dict[str, signal.Signals]] = {
        "fast": signal.SIGTERM,
        "immediate": signal.SIGKILL,
    }

    def __init__(self) -> None:
        self.port = 0
        self.version = ""
        """A name in ``versions.VERSIONS``; empty = what is installed."""
        self.folder = Path()
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None

    # To be defined by each kind of server.

    @property
    def url(self) -> str:
        """The URL of the server, in the form of scripts/services."""
        raise NotImplementedError

    def install(self) -> None:
        """Write the files that a new server needs into the folder."""

    def command(self) -> list[str]:
        """Return the command that runs the server in the foreground, with data in the folder."""
        raise NotImplementedError

    def answers(self) -> bool:
        """Tell whether the server takes a connection."""
        raise NotImplementedError

    # Life cycle.

    def __enter__(self) -> Self:
        """Make the folder and start the server."""
        self.folder = Path(tempfile.mkdtemp(prefix=f"stoker-{self.name}-"))
        self._watchdog = self._start_watchdog()
        try:
            self._give_away(self.folder)
            self.install()
            self._start_on_a_free_port()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the server and remove its files."""
        self.close()

    def start(self) -> None:
        """Start the server and wait until it answers."""
        if self._process is not None:
            return
        with (self.folder / "server.log").open("ab") as log:
            process = self._spawn(self.command(), stdout=log, stderr=subprocess.STDOUT)
        self._process = process
        (self.folder / "server.pid").write_text(str(process.pid))
        wait_until(lambda: process.poll() is not None or self.answers(), START_SECONDS)
        if process.poll() is not None or not self.answers():
            log_end = (self.folder / "server.log").read_text(errors="replace")[-2000:]
            self.kill()
            raise ServerUnavailableError(f"{self.name} did not start: {log_end}")

    def stop(self, mode: str = "fast") -> None:
        """Stop the server and wait for it: `fast` with a clean shutdown, `immediate` without."""
        if self._process is None:
            return
        self._process.send_signal(self.modes[mode])
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        self._forget_process()

    def kill(self) -> None:
        """Kill the server and all its processes at once, as a power cut would."""
        if self._process is not None:
            kill_family(self._process.pid)
            self._process.wait()
        self._forget_process()

    def close(self) -> None:
        """Stop the server, remove its folder, let the watchdog go."""
        self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._watchdog is not None:
            self._watchdog.kill()
            self._watchdog.communicate()
            self._watchdog = None

    # Implementation.

    def _start_on_a_free_port(self) -> None:
        """Try several ports: another process may take one between our check and our start."""
        for tries_left in (2, 1, 0):
            self.port = free_port()
            try:
                self.start()
            except ServerUnavailableError:
                if not tries_left:
                    raise
            else:
                return

    def run(self, command: list[str]) -> None:
        """Run a program of the server to its end, as the user that the server runs as."""
        done = self._spawn(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        output, _ = done.communicate(timeout=START_SECONDS)
        if done.returncode:
            said = output.decode(errors="replace")[-2000:]
            raise ServerUnavailableError(f"{command[0]} failed: {said}")

    def _spawn(self, command: list[str], **streams: Any) -> subprocess.Popen[bytes]:
        # Servers refuse to run as root, or should. In its own session it gets no Ctrl-C. It may
        # write in its own folder, but not in the TMPDIR of the tests.
        folder = str(self.folder)
        identity: dict[str, Any] = {}
        if os.geteuid() == 0 and self.refuses_root:
            nobody = pwd.getpwnam("nobody")
            identity = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        return subprocess.Popen(
            command,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "HOME": folder, "TMPDIR": folder, "LC_ALL": "C"},
            start_new_session=True,
            **identity,
            **streams,
        )

    def _start_watchdog(self) -> subprocess.Popen[bytes]:
        watchdog = subprocess.Popen(
            [sys.executable, "-m", "tests.servers.watchdog", str(self.folder)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert watchdog.stdout is not None
        watchdog.stdout.readline()
        return watchdog

    def _forget_process(self) -> None:
        self._process = None
        (self.folder / "server.pid").unlink(missing_ok=True)

    @staticmethod
    def _give_away(folder: Path) -> None:
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)
