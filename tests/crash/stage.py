"""The stage: private servers, a proxy for each party, and clusters side by side."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil

from tests.crash.ledger import now
from tests.crash.proxy import Proxy
from tests.servers.disque import disque_nodes
from tests.servers.ironmq import PrivateIronmq, url_at
from tests.servers.mariadb import PrivateMariadb
from tests.servers.mongodb import PrivateMongodb
from tests.servers.postgres import PrivatePostgres
from tests.servers.private import ROOT, PrivateServer
from tests.servers.redis import PrivateRedis
from tests.servers.sqs import PrivateSqs, sqs_url

LEASE_SECONDS = 6.0
ROLES = ("sentinel", "pusher", "monitor", "scheduler", "worker")
OPTIONS: dict[str, Any] = {
    "WORKERS": 2,
    "LEASE_SECONDS": LEASE_SECONDS,
    "HEARTBEAT_SECONDS": 1,
    "UPKEEP_SECONDS": 0.5,
    "POLL_SECONDS": 0.2,
    "DATABASE_SECONDS": 2,
    "SHUTDOWN_SECONDS": 5,
    "MAX_ATTEMPTS": 100,
    "MAX_CRASHES": 100,
}
BROKERS = ("postgres", "mariadb", "sqlite", "redis", "mongodb", "sqs", "disque", "ironmq")
FORGETFUL = ("mongodb", "sqs", "disque", "ironmq")
"""The stand-ins for these servers keep everything in memory, so they are frozen, not restarted."""
START_SECONDS = 60.0


class Party(Protocol):
    """A client with its own proxy to each server."""

    name: str


@dataclass
class Impairment:
    """A time in which a cluster, or all (None), could not be expected to work."""

    cluster: int | None
    began: float
    ended: float | None = None


class Server:
    """A server that all parties use, each through its own proxy."""

    def __init__(self, private: PrivateServer, parties: list[str]) -> None:
        self.private = private
        self.name = private.name
        self.proxies = {party: Proxy(private.port) for party in parties}

    @property
    def is_durable(self) -> bool:
        return self.name not in FORGETFUL

    def processes(self) -> list[psutil.Process]:
        """Return the server's processes, the oldest first."""
        with suppress(OSError, ValueError, psutil.NoSuchProcess):
            eldest = psutil.Process(int((self.private.folder / "server.pid").read_text()))
            return [eldest, *eldest.children(recursive=True)]
        return []


class Stage:
    """The servers, proxies and clusters of a run. A context manager that removes them all."""

    def __init__(
        self, broker: str, clusters: int, source: Path | None = None, mistake: str = ""
    ) -> None:
        self.broker = broker
        self.mistake = mistake
        self.folder = Path(tempfile.mkdtemp(prefix="stoker-crash-"))
        self.ledger = self.folder / "ledger"
        self.ledger.touch()
        self.source = source or ROOT / "src"
        self.parties = [*(f"cluster {number}" for number in range(clusters)), "users"]
        self.servers: list[Server] = []
        self.nodes: list[Server] = []
        self.clusters: list[Cluster] = []
        self.impairments: list[Impairment] = []
        self._count = clusters
        self._stack = ExitStack()

    def __enter__(self) -> Stage:
        try:
            self._start_servers()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for cluster in self.clusters:
            cluster.end()
        for server in self.servers:
            for proxy in server.proxies.values():
                proxy.close()
            for process in server.processes():
                with suppress(psutil.Error):
                    process.resume()
        self._stack.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start_clusters(self) -> None:
        """Start all clusters, and wait until they are complete."""
        self.clusters = [Cluster(self, number) for number in range(self._count)]
        for cluster in self.clusters:
            cluster.start()
        for cluster in self.clusters:
            if not cluster.wait_until_complete(START_SECONDS):
                raise RuntimeError(f"{cluster.name} does not start:\n{cluster.tail()}")
            for server in self.servers[
                :1
            ]:  # every cluster uses each at once, the other servers later
                proxy = server.proxies[cluster.name]
                if not _wait(lambda proxy=proxy: proxy.accepted > 0, START_SECONDS):  # type: ignore[misc]
                    raise RuntimeError(f"{cluster.name} does not use its proxy to {server.name}")

    def environment(self, party: str | None, folder: Path | None = None) -> dict[str, str]:
        """Return the environment of a process, which connects through the proxies of its party."""
        crash = {
            "database": self._database(party),
            "broker": self._broker_url(party),
            "options": OPTIONS,
            "ledger": str(self.ledger),
            "mistake": self.mistake if party else "",
        }
        return {
            **{name: value for name, value in os.environ.items() if name != "STOKER_TEST_OPTIONS"},
            "DJANGO_SETTINGS_MODULE": "tests.crash.settings",
            "PYTHONPATH": os.pathsep.join([str(self.source), str(ROOT)]),
            "STOKER_CRASH": json.dumps(crash),
            "TMPDIR": str(folder or self.folder),
        }

    def impair(self, cluster: int | None) -> Impairment:
        """Note that from now on a cluster, or all, cannot be expected to work."""
        impairment = Impairment(cluster, now())
        self.impairments.append(impairment)
        return impairment

    @property
    def database(self) -> Server | None:
        """Return the database server; None with SQLite."""
        return next((s for s in self.servers if s.name in {"postgres", "mariadb"}), None)

    # Implementation.

    def _start_servers(self) -> None:
        if self.broker == "mariadb":
            self._add(PrivateMariadb(innodb_buffer_pool_size="64M"))
        elif self.broker != "sqlite":
            self._add(PrivatePostgres(max_connections="100", shared_buffers="64MB"))
        if self.broker == "redis":
            self._add(PrivateRedis(is_durable=True))
        elif self.broker == "mongodb":
            self._add(PrivateMongodb())
        elif self.broker == "sqs":
            self._add(PrivateSqs())
        elif self.broker == "ironmq":
            self._add(PrivateIronmq())
        elif self.broker == "disque":
            for node in self._stack.enter_context(disque_nodes(3)):
                self._note(node)
        self._make_database()

    def _add(self, private: PrivateServer) -> None:
        self._note(self._stack.enter_context(private))

    def _note(self, private: PrivateServer) -> None:
        self.servers.append(Server(private, self.parties))

    def _make_database(self) -> None:
        environment = self.environment(None)
        if self.broker == "mariadb":
            self._run_sql_on_mariadb()
        command = [sys.executable, "-m", "django", "migrate", "-v", "0"]
        subprocess.run(command, cwd=ROOT, env=environment, check=True)

    def _run_sql_on_mariadb(self) -> None:
        import MySQLdb

        port = self.servers[0].private.port
        with MySQLdb.connect(host="127.0.0.1", port=port, user="root") as connection:
            connection.cursor().execute("CREATE DATABASE crash CHARACTER SET utf8mb4")

    def _port(self, server: Server, party: str | None) -> int:
        return server.private.port if party is None else server.proxies[party].port

    def _database(self, party: str | None) -> dict[str, Any]:
        server = self.database
        if server is None:
            name = str(self.folder / "crash.sqlite3")
            return {"ENGINE": "django.db.backends.sqlite3", "NAME": name}
        is_postgres = server.name == "postgres"
        return {
            "ENGINE": f"django.db.backends.{'postgresql' if is_postgres else 'mysql'}",
            "HOST": "127.0.0.1",
            "PORT": str(self._port(server, party)),
            "USER": "postgres" if is_postgres else "root",
            "NAME": "postgres" if is_postgres else "crash",
            "OPTIONS": {"connect_timeout": 3, **({} if is_postgres else {"charset": "utf8mb4"})},
        }

    def _broker_url(self, party: str | None) -> str:
        servers = [server for server in self.servers if server is not self.database]
        if not servers:
            return "orm://default"
        ports = [self._port(server, party) for server in servers]
        return {
            "redis": lambda: f"redis://127.0.0.1:{ports[0]}/0",
            "mongodb": lambda: f"mongodb://127.0.0.1:{ports[0]}/crash?directConnection=true",
            "sqs": lambda: sqs_url(ports[0], "crash"),
            "ironmq": lambda: url_at(ports[0]),
            "disque": lambda: "disque://" + ",".join(f"127.0.0.1:{port}" for port in ports),
        }[self.broker]()


class Cluster:
    """A real `stoker run` with a temporary folder as on its own host, restarted when it ends."""

    def __init__(self, stage: Stage, number: int) -> None:
        self.stage = stage
        self.number = number
        self.name = f"cluster {number}"
        self.log = stage.folder / f"{self.name.replace(' ', '-')}.log"
        self.starts = 0
        self._host = 0
        self._process: Any = None
        self._sentinel: psutil.Process | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the cluster on the same host as before."""
        from tests.cluster.clusters import start_command
        from tests.cluster.launcher import COMMAND

        self._folder.mkdir(exist_ok=True)
        environment = self.stage.environment(self.name, self._folder)
        with self._lock, self.log.open("ab") as log:
            self._process = start_command(
                COMMAND, ["stoker", "run", "--log-json"], environment, log, log
            )
            self._sentinel = psutil.Process(self._process.pid)
            self.starts += 1

    @property
    def _folder(self) -> Path:
        """The temporary folder of its host, which contains its board."""
        return self.stage.folder / f"host-{self.number}-{self._host}"

    def members(self) -> list[tuple[str, psutil.Process]]:
        """Return role and process of each living process, the sentinel first."""
        from tests.cluster.clusters import KERNEL_NAMES, is_alive

        sentinel = self._sentinel
        if sentinel is None or not is_alive(sentinel):
            return []
        found = [("sentinel", sentinel)]
        with suppress(psutil.Error):
            for child in sorted(sentinel.children(recursive=True), key=lambda one: one.pid):
                with suppress(psutil.Error, KeyError):
                    found.append((KERNEL_NAMES[child.name()], child))
        return found

    def having(self, role: str) -> list[psutil.Process]:
        return [process for what, process in self.members() if what == role]

    def is_complete(self) -> bool:
        """Return whether all its processes are running."""
        roles = [role for role, _ in self.members()]
        return set(roles) >= set(ROLES) and roles.count("worker") == OPTIONS["WORKERS"]

    def wait_until_complete(self, seconds: float) -> bool:
        return _wait(self.is_complete, seconds)

    def send(self, number: signal.Signals, processes: list[psutil.Process]) -> int:
        """Send a signal to processes. Return to how many."""
        count = 0
        for process in processes:
            with suppress(psutil.Error):
                process.send_signal(number)
                count += 1
        return count

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start_if_ended(self) -> bool:
        """Start the cluster if it has ended. Return whether it had."""
        if self.is_running():
            return False
        self.start()
        return True

    def move_to_another_host(self) -> None:
        """Delete its files and let it start on another host."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._host += 1

    def stop(self, seconds: float = 30.0) -> int | None:
        """Stop it with SIGTERM. Return its exit code, or None if it did not stop in time."""
        if self._process is None:
            return 0
        self._process.send_signal(signal.SIGTERM)
        try:
            return int(self._process.wait(seconds))
        except subprocess.TimeoutExpired:
            return None

    def end(self) -> None:
        """Kill all its processes."""
        members = [process for _, process in self.members()]
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(10)
        self.send(signal.SIGKILL, members)

    def tail(self, lines: int = 40) -> str:
        with suppress(OSError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        return ""


def _wait(condition: Callable[[], bool], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True
