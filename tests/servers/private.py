"""A server for one test alone: own folder, own port, gone without a trace afterwards."""

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
# Linux hands out ports from 32768 on by itself: below, none is lost between our look and our start.
PORTS = range(20_000, 32_000)


class ServerUnavailableError(Exception):
    """A server that cannot be had here: its sentence stands in the summary of the tests."""


class NotInstalledError(ServerUnavailableError):
    """A server whose programs are not on this machine."""


_claims: list[socket.socket] = []
"""One for each port that was found, as long as this process lives."""


def free_port() -> int:
    """Find a port that nobody listens on, and that nobody else who asks here is given."""
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
    """Find the first of these programs, on PATH or in the folders where servers are installed."""
    places = [os.environ.get("PATH", ""), *map(str, folders), "/usr/sbin", "/usr/local/sbin"]
    for name in names:
        if found := shutil.which(name, path=os.pathsep.join(places)):
            return found
    raise NotInstalledError(f"{names[0]} is not installed")


class PrivateServer:
    """A context manager around one server.

    It can be stopped, killed and started again in between, on the same port and with the same
    data. When the process that entered it dies, a watchdog ends the server and removes its folder.
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

    # What each kind of server says of itself.

    @property
    def url(self) -> str:
        """Where the server is, as scripts/services would say it."""
        raise NotImplementedError

    def install(self) -> None:
        """Write the files that a new server needs into the folder."""

    def command(self) -> list[str]:
        """Give the command that runs the server in the foreground, somewhere in the folder."""
        raise NotImplementedError

    def answers(self) -> bool:
        """Tell whether the server takes a connection."""
        raise NotImplementedError

    # A server's life.

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
        """Stop the server and leave nothing behind."""
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
        """Stop the server and wait for it: `fast` in good order, `immediate` without."""
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

    # How it is done.

    def _start_on_a_free_port(self) -> None:
        """Another process may take the port between our look and our start."""
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
        # Servers refuse to run as root, or should. In a session of its own no Ctrl-C reaches it.
        # Its own folder is where it may write: the TMPDIR of the tests belongs to somebody else.
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
