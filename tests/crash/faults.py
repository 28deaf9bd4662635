"""Faults: planned from a seed before anything runs, carried out, and healed."""

from __future__ import annotations

import itertools
import random
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import psutil

from tests.crash.ledger import now
from tests.crash.stage import LEASE_SECONDS, OPTIONS, ROLES, START_SECONDS, Cluster, Server, Stage

SHORT = (0.2, 1.5)
LONG = (1.2 * LEASE_SECONDS, 1.6 * LEASE_SECONDS)
LOST_SECONDS = 30.0
"""How long the server's end of a silently lost connection stays open: much longer than any process
may wait for it."""


@dataclass(frozen=True)
class Fault:
    """One planned fault."""

    number: int
    pause: float
    """Seconds since the previous fault."""
    kind: str
    cluster: int
    seconds: float
    roles: tuple[str, ...] = ()
    choice: int = 0
    """Selects one of the processes, connections or servers that exist then."""

    def __str__(self) -> str:
        text = f"{self.number:4} {self.kind}"
        if self.roles:
            text += f" {'+'.join(self.roles)}"
        if not self.kind.startswith(("server", "user")):
            text += f" of cluster {self.cluster}"
        return text + (f" for {self.seconds:.1f} s" if self.seconds else "")


FaultPlan = Callable[[int, int, bool], Iterator[Fault]]
"""Yields faults without end for a seed, a number of clusters, and whether they have lines to
servers."""

VICTIMS = (
    *((role,) for role in ROLES),
    ("worker", "worker"),
    ("pusher", "monitor"),
    ("pusher", "worker"),
    ("worker", "sentinel"),
)
STOPPED = (
    *((role,) for role in ROLES),
    ("sentinel", "pusher"),
    ("pusher", "monitor"),
    ("pusher", "worker"),
    ROLES,
)
ON_LINES = {
    "cut": 5,
    "lose silently": 4,
    "lose in transaction": 3,
    "partition": 3,
    "refuse": 2,
    "delay": 3,
    "lose commits": 8,
    "stop commits": 3,
    "silence commits": 6,
    "lose answers": 4,
}
ON_PROCESSES = {"kill": 18, "stop": 14, "lose host": 5, "terminate": 2}
ON_SERVERS = {"server terminates": 6, "server restarts": 2, "server dies": 2, "server freezes": 2}
ON_USERS = {"user is killed": 3}


def plan(seed: int, clusters: int, has_lines: bool) -> Iterator[Fault]:
    """Yield faults without end, the same ones for the same seed."""
    chance = random.Random(seed)
    weights = {**ON_PROCESSES, **ON_USERS}
    if has_lines:
        weights |= {**ON_LINES, **ON_SERVERS}
    number = 0
    while True:
        number += 1
        (kind,) = chance.choices(list(weights), list(weights.values()))
        pause = chance.uniform(0.2, 2.2)
        cluster = chance.randrange(clusters + (kind in ON_LINES))
        choice = chance.randrange(1000)
        seconds, roles = 0.0, ()
        if kind == "kill":
            roles = chance.choice(VICTIMS)
        elif kind == "stop":
            roles = chance.choice(STOPPED)
            seconds = chance.uniform(*(SHORT if chance.random() < 0.5 else LONG))
        elif kind in {"partition", "refuse"}:
            seconds = chance.uniform(*(SHORT if chance.random() < 0.6 else LONG))
        elif kind in {"delay", "lose commits", "stop commits", "silence commits", "lose answers"}:
            seconds = chance.uniform(0.5, 2.5)
        elif kind in {"server freezes", "server restarts", "server dies"}:
            seconds = chance.uniform(0.1, 2.5)
        yield Fault(number, pause, kind, cluster, seconds, roles, choice)


def long_stops(seed: int, clusters: int, has_lines: bool) -> Iterator[Fault]:
    """Yield faults without end that stop one cluster after another for longer than a lease. They
    leave the others enough time to take its jobs over."""
    chance = random.Random(seed)
    for number in itertools.count(1):
        seconds = chance.uniform(*LONG)
        roles = (ROLES, ("pusher", "monitor"))[chance.randrange(2)]
        yield Fault(number, seconds + 2, "stop", number % clusters, seconds, roles)


@dataclass
class Healing:
    """An action at the end of a fault."""

    at: float
    act: Callable[[], None]
    fault: Fault = field(compare=False)


class Faults:
    """Carries out faults on a stage. One thread calls it."""

    def __init__(self, stage: Stage, users: Any, say: Callable[[str], None]) -> None:
        self.stage = stage
        self.users = users
        self.say = say
        self.healings: list[Healing] = []
        self.counts: dict[str, int] = {}
        self.is_server_down = False
        self.killed: dict[int, float] = {}
        """Process id -> when a fault, and not its own cluster, killed it last (boot clock)."""
        self.stopped: dict[int, list[float]] = defaultdict(list)
        """Process id -> when a fault stopped it (boot clock)."""
        self.interrupted: set[psutil.Process] = set()
        """Workers of clusters that were told to stop, which may kill them at any moment."""
        self.workers_lost = 0
        """Workers that may have been killed between "this job starts" and its first line."""

    def strike(self, fault: Fault) -> None:
        """Carry out one fault and log what it hit."""
        method = getattr(self, "_" + fault.kind.replace(" ", "_"))
        hit = method(fault)
        if hit:
            self.counts[fault.kind] = self.counts.get(fault.kind, 0) + 1
        self.say(f"{fault}: {hit or 'nothing was there'}")

    def tend(self) -> None:
        """Heal faults that are over, and start clusters that have ended."""
        due = [one for one in self.healings if one.at <= time.monotonic()]
        for one in due:
            self.healings.remove(one)
            one.act()
        for cluster in self.stage.clusters:
            if not cluster.is_running():
                impairment = self.stage.impair(cluster.number)
                cluster.start()
                self._until_complete(cluster, impairment)

    def heal_all(self) -> None:
        """End all faults now. ``tend`` does what has to be waited for."""
        due, self.healings = self.healings, []
        for one in sorted(due, key=lambda one: one.at):
            one.act()
        self.tend()

    # Processes.

    def _kill(self, fault: Fault) -> str:
        cluster = self.stage.clusters[fault.cluster]
        victims = self._choose(cluster, fault)
        if "sentinel" in fault.roles:
            self._impair_until_complete(cluster)
            self._lose_workers(cluster)
            self._note_killed(cluster.having("worker"))
        self._note_killed(one for _, one in victims)
        self.workers_lost += fault.roles.count("worker")
        return _names(victims, cluster.send(signal.SIGKILL, [one for _, one in victims]))

    def _stop(self, fault: Fault) -> str:
        cluster = self.stage.clusters[fault.cluster]
        victims = cluster.members() if fault.roles == ROLES else self._choose(cluster, fault)
        processes = [one for _, one in victims]
        if fault.seconds > LEASE_SECONDS / 2:  # its workers will be killed
            self._lose_workers(cluster)
        for process in processes:
            self.stopped[process.pid].append(now())
        count = cluster.send(signal.SIGSTOP, processes)
        impairment = self.stage.impair(cluster.number)

        def resume() -> None:
            cluster.send(signal.SIGCONT, processes)
            self._later(1.0, fault, lambda: _close(impairment))

        self._later(fault.seconds, fault, resume)
        return _names(victims, count)

    def _lose_host(self, fault: Fault) -> str:
        """Power off: kill its processes, lose its connections silently, delete its files."""
        cluster = self.stage.clusters[fault.cluster]
        for server in self.stage.servers:
            server.proxies[cluster.name].lose_silently()
        self._later(LOST_SECONDS, fault, lambda: self._close_lost(cluster.name))
        members = cluster.members()
        cluster.send(signal.SIGSTOP, [one for _, one in members])
        count = cluster.send(signal.SIGKILL, [one for _, one in members])
        self._note_killed(one for _, one in members)
        cluster.move_to_another_host()
        self._lose_workers(cluster)
        self._impair_until_complete(cluster)
        return _names(members, count)

    def _terminate(self, fault: Fault) -> str:
        """Stop the cluster with SIGTERM."""
        cluster = self.stage.clusters[fault.cluster]
        sentinels = cluster.having("sentinel")
        self.interrupted |= set(cluster.having("worker"))
        self._impair_until_complete(cluster)
        return _names(
            [("sentinel", one) for one in sentinels], cluster.send(signal.SIGTERM, sentinels)
        )

    def _user_is_killed(self, fault: Fault) -> str:
        return str(self.users.kill(fault.choice))

    # Lines.

    def _cut(self, fault: Fault) -> str:
        proxy = self._proxy(fault)
        return _count(proxy.cut(by_reset=bool(fault.choice % 2)))

    def _lose_silently(self, fault: Fault) -> str:
        return self._lost(fault, self._proxy(fault).lose_silently())

    def _lose_in_transaction(self, fault: Fault) -> str:
        return self._lost(fault, self._proxy(fault).lose_in_transaction(2.0))

    def _partition(self, fault: Fault) -> str:
        party = self._party(fault)
        count = sum(server.proxies[party].partition() for server in self.stage.servers)
        self._impair_line(fault)
        return self._lost(fault, count)

    def _refuse(self, fault: Fault) -> str:
        count = self._proxy(fault).refuse()
        self._impair_line(fault)
        self._later(fault.seconds, fault, self._proxy(fault).heal)
        return _count(count)

    def _delay(self, fault: Fault) -> str:
        seconds = 0.02 + (fault.choice % 10) / 50
        self._proxy(fault).delay(seconds)
        self._later(fault.seconds, fault, self._proxy(fault).heal)
        return f"each packet by {seconds:.2f} s"

    def _lose_commits(self, fault: Fault) -> str:
        return self._spoil(fault, "lose_commits", "lose_answers")

    def _stop_commits(self, fault: Fault) -> str:
        return self._spoil(fault, "stop_commits", "lose_answers")

    def _silence_commits(self, fault: Fault) -> str:
        party = self._party(fault)
        self._later(LOST_SECONDS, fault, lambda: self._close_lost(party))
        if party == "users":  # whose drivers have no deadlines
            self._later(fault.seconds + 2, fault, lambda: self._close_lost_clients(party))
        return self._spoil(fault, "silence_commits", "lose_answers")

    def _lose_answers(self, fault: Fault) -> str:
        return self._spoil(fault, "lose_answers", "lose_answers")

    def _spoil(self, fault: Fault, on_database: str, elsewhere: str) -> str:
        server, proxy = self._server(fault), self._proxy(fault)
        name = on_database if server is self.stage.database else elsewhere
        before = proxy.losses
        getattr(proxy, name)(1 + fault.choice % 3)

        def heal() -> None:
            proxy.heal()
            self.say(f"     fault {fault.number}: {proxy.losses - before} lost")

        self._later(fault.seconds, fault, heal)
        return f"{name} on {server.name}, {1 + fault.choice % 3} times"

    def _lost(self, fault: Fault, count: int) -> str:
        party = self._party(fault)

        def tell_clients() -> None:
            for server in self.stage.servers:
                server.proxies[party].heal()
            if party == "users":  # whose drivers have no deadlines
                self._close_lost_clients(party)

        self._later(fault.seconds or 3.0, fault, tell_clients)
        self._later(LOST_SECONDS, fault, lambda: self._close_lost(party))
        return _count(count)

    def _close_lost_clients(self, party: str) -> None:
        for server in self.stage.servers:
            server.proxies[party].close_lost_clients()

    def _close_lost(self, party: str) -> None:
        for server in self.stage.servers:
            server.proxies[party].close_lost()

    # Servers.

    def _server_terminates(self, fault: Fault) -> str:
        """Terminate some sessions, as an administrator would."""
        server = self.stage.database
        chance = random.Random(fault.choice)
        if server is None or self.is_server_down:
            return ""
        terminate = _terminate_on_postgres if server.name == "postgres" else _terminate_on_mariadb
        with suppress(Exception):
            return _count(terminate(server.private.port, chance))
        return ""

    def _server_restarts(self, fault: Fault) -> str:
        return self._restart(fault, lambda server: server.private.stop("fast"))

    def _server_dies(self, fault: Fault) -> str:
        return self._restart(fault, lambda server: server.private.kill())

    def _restart(self, fault: Fault, end: Callable[[Server], None]) -> str:
        server = self._server(fault)
        if not server.is_durable:
            return self._server_freezes(fault)
        if self.is_server_down:
            return ""
        self.is_server_down = True
        impairment = self.stage.impair(None)
        end(server)

        def start() -> None:
            server.private.start()
            self.is_server_down = False
            self._later(2.0, fault, lambda: _close(impairment))

        self._later(fault.seconds, fault, start)
        return server.name

    def _server_freezes(self, fault: Fault) -> str:
        server = self._server(fault)
        if self.is_server_down:
            return ""
        self.is_server_down = True
        impairment = self.stage.impair(None)
        processes = server.processes()
        for process in processes:
            with suppress(psutil.Error):
                process.suspend()

        def resume() -> None:
            for process in processes:
                with suppress(psutil.Error):
                    process.resume()
            self.is_server_down = False
            self._later(1.0, fault, lambda: _close(impairment))

        self._later(fault.seconds, fault, resume)
        return f"{server.name} for {fault.seconds:.1f} s"

    # Shared helpers.

    def _choose(self, cluster: Cluster, fault: Fault) -> list[tuple[str, psutil.Process]]:
        chosen: list[tuple[str, psutil.Process]] = []
        for place, role in enumerate(fault.roles):
            having = cluster.having(role)
            if having:
                process = having[(fault.choice + place) % len(having)]
                if all(process.pid != one.pid for _, one in chosen):
                    chosen.append((role, process))
        return chosen

    def _note_killed(self, processes: Iterable[psutil.Process]) -> None:
        for one in processes:
            if one not in self.interrupted:
                self.killed[one.pid] = now()

    def _lose_workers(self, cluster: Cluster) -> None:
        self.workers_lost += max(len(cluster.having("worker")), OPTIONS["WORKERS"])

    def _party(self, fault: Fault) -> str:
        return self.stage.parties[fault.cluster]

    def _server(self, fault: Fault) -> Server:
        return self.stage.servers[fault.choice % len(self.stage.servers)]

    def _proxy(self, fault: Fault) -> Any:
        return self._server(fault).proxies[self._party(fault)]

    def _impair_line(self, fault: Fault) -> None:
        if fault.cluster < len(self.stage.clusters):
            if fault.seconds > LEASE_SECONDS / 2:  # its fence kills what runs
                self._lose_workers(self.stage.clusters[fault.cluster])
            impairment = self.stage.impair(fault.cluster)
            self._later(fault.seconds + 2.0, fault, lambda: _close(impairment))

    def _impair_until_complete(self, cluster: Cluster) -> None:
        self._until_complete(cluster, self.stage.impair(cluster.number))

    def _until_complete(self, cluster: Cluster, impairment: Any) -> None:
        limit = time.monotonic() + START_SECONDS
        number = cluster.starts

        def look() -> None:
            has_started = cluster.starts > number or cluster.is_running()
            if (has_started and cluster.is_complete()) or time.monotonic() > limit:
                self._later(1.0, None, lambda: _close(impairment))
            else:
                self._later(0.2, None, look)

        self._later(0.2, None, look)

    def _later(self, seconds: float, fault: Any, act: Callable[[], None]) -> None:
        self.healings.append(Healing(time.monotonic() + seconds, act, fault))


def _terminate_on_postgres(port: int, chance: random.Random) -> int:
    import psycopg

    with psycopg.connect(host="127.0.0.1", port=port, user="postgres", connect_timeout=3) as admin:
        rows = admin.execute(
            "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' "
            "AND pid <> pg_backend_pid() ORDER BY backend_start"
        ).fetchall()
        chosen = [pid for (pid,) in rows if chance.random() < 0.5]
        for pid in chosen:
            admin.execute("SELECT pg_terminate_backend(%s)", [pid])
    return len(chosen)


def _terminate_on_mariadb(port: int, chance: random.Random) -> int:
    import MySQLdb

    admin = MySQLdb.connect(host="127.0.0.1", port=port, user="root", connect_timeout=3)
    try:
        cursor = admin.cursor()
        cursor.execute(
            "SELECT id FROM information_schema.processlist WHERE db = 'crash' ORDER BY id"
        )
        chosen = [number for (number,) in cursor.fetchall() if chance.random() < 0.5]
        for number in chosen:
            with suppress(MySQLdb.Error):
                cursor.execute(f"KILL CONNECTION {int(number)}")
    finally:
        admin.close()
    return len(chosen)


def _close(impairment: Any) -> None:
    from tests.crash.ledger import now

    if impairment.ended is None:
        impairment.ended = now()


def _names(victims: list[tuple[str, psutil.Process]], count: int) -> str:
    return ", ".join(f"{role} {process.pid}" for role, process in victims) if count else ""


def _count(count: int) -> str:
    return f"{count} connections" if count else ""
