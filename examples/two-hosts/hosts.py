"""Two hosts, and the cables between them and the servers.

::

    left  --- cable ---  [ database, Redis, the script that tells the story ]  --- cable ---  right

Each host is a network namespace, the servers are in a third one, and a cable is a pair of virtual
network devices that can be set down. If namespaces are not allowed, a host is only a process, and
its cable is a relay of bytes that can stop.
"""

import os
import shutil
import socket
import subprocess
import sys
import threading
from contextlib import suppress

NETWORKS = {"left": "10.213.1", "right": "10.213.2"}
"""In each network, the servers are .1 and the host is .2."""
MIDDLE = "TWO_HOSTS_MIDDLE"
"""Name of the script's namespace."""


def enter_the_middle() -> None:
    """Continue in a network namespace of the script's own, if that is allowed. The first call does
    not return then."""
    if MIDDLE in os.environ or not are_namespaces_allowed():
        return
    name = f"stoker-{os.getpid()}"
    code = 1
    try:
        _ip("netns", "add", name)
        code = subprocess.run(
            ["ip", "netns", "exec", name, sys.executable, *sys.argv],
            env={**os.environ, MIDDLE: name},
            check=False,
        ).returncode
    finally:
        for one in (name, *(f"{name}-{host}" for host in NETWORKS)):
            subprocess.run(["ip", "netns", "del", one], capture_output=True, check=False)
    sys.exit(code)


def are_namespaces_allowed() -> bool:
    """Return whether a namespace can be created."""
    if os.environ.get("TWO_HOSTS_PROCESSES") or os.geteuid() or not shutil.which("ip"):
        return False
    name = f"stoker-{os.getpid()}-try"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    if made.returncode:
        return False
    inside = ["ip", "netns", "exec", name, "ip", "link", "set", "lo", "up"]
    tried = subprocess.run(inside, capture_output=True, check=False)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return not tried.returncode


def addresses() -> list[str]:
    """Return the addresses where the servers listen."""
    own = [f"{network}.1" for network in NETWORKS.values()] if MIDDLE in os.environ else []
    return ["127.0.0.1", *own]


class Namespace:
    """A host in a network namespace."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._space = f"{os.environ[MIDDLE]}-{name}"
        self._device = f"to-{name}"
        network = NETWORKS[name]
        _ip("netns", "add", self._space)
        _ip("link", "add", self._device, "type", "veth", "peer", "eth0", "netns", self._space)
        _ip("addr", "add", f"{network}.1/24", "dev", self._device)
        _ip("-n", self._space, "addr", "add", f"{network}.2/24", "dev", "eth0")
        _ip("-n", self._space, "link", "set", "eth0", "up")
        _ip("-n", self._space, "link", "set", "lo", "up")
        _ip("link", "set", self._device, "up")
        self.server = f"{network}.1"

    def at(self, port: int) -> int:
        """Return the port by which the host reaches the server that listens on this port."""
        return port

    def command(self, *words: str) -> list[str]:
        """Return the command line that runs a command on the host, with its own host name if
        allowed."""
        inside = ["ip", "netns", "exec", self._space]
        if shutil.which("unshare") and shutil.which("hostname"):
            renamed = f'hostname {self.name}; exec "$@"'
            inside += ["unshare", "--uts", "sh", "-c", renamed, "sh"]
        return [*inside, *words]

    def cut(self) -> None:
        """Cut the connection silently: no packet arrives any more."""
        _ip("link", "set", self._device, "down")

    def mend(self) -> None:
        """Restore the connection."""
        _ip("link", "set", self._device, "up")

    def close(self) -> None:
        """Do nothing: the namespace is removed together with the script's."""


class Process:
    """A host that is only a process, behind a relay."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.server = "127.0.0.1"
        self._is_whole = threading.Event()
        self._is_whole.set()
        self._listeners: list[socket.socket] = []

    def at(self, port: int) -> int:
        """Return the port by which the host reaches the server that listens on this port."""
        listener = socket.create_server(("127.0.0.1", 0))
        self._listeners.append(listener)
        threading.Thread(target=self._relay, args=[listener, port], daemon=True).start()
        return int(listener.getsockname()[1])

    def command(self, *words: str) -> list[str]:
        """Return the command unchanged."""
        return list(words)

    def cut(self) -> None:
        """Cut the connection silently: no byte arrives any more."""
        self._is_whole.clear()

    def mend(self) -> None:
        """Restore the connection."""
        self._is_whole.set()

    def close(self) -> None:
        """Stop accepting connections."""
        self.mend()
        for listener in self._listeners:
            listener.close()

    def _relay(self, listener: socket.socket, port: int) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                self._is_whole.wait()
                server = socket.create_connection(("127.0.0.1", port))
                for ends in ((client, server), (server, client)):
                    threading.Thread(target=self._carry, args=ends, daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self._is_whole.wait()
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def open_hosts() -> dict[str, Namespace | Process]:
    """Name -> host."""
    if MIDDLE in os.environ:
        _ip("link", "set", "lo", "up")
        return {name: Namespace(name) for name in NETWORKS}
    return {name: Process(name) for name in NETWORKS}


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
