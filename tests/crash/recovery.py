"""Measure how long faults have an effect, with the default settings.

Run `python -m tests.crash.recovery postgres` (or mariadb, sqlite, redis). It prints the rows of the
table "How long it takes" in docs/explanation/what-happens-when.md. Further words choose the faults
whose names have them. For each fault, a long job runs and a short one is enqueued ten times a
second:

    start     the longest time from the enqueue of a short job until it started
    record    the longest time from the end of a short job until its result was available
    long job  how long after the fault the long job started again, if it did not continue
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tests.crash import stage as stages
from tests.crash.ledger import LedgerReader, now
from tests.crash.stage import START_SECONDS, Cluster, Stage

EVERY_SECONDS = 0.1
LONG_SECONDS = 5.0
FELT_SECONDS = 5.0
"""Short jobs are enqueued for so long after the fault, and until all jobs have ended."""
PARTITION_SECONDS = 10.0

Strike = Callable[["Measurement"], None]


class Measurement:
    """One fault, and the jobs around it."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.stage = stage
        self.cluster: Cluster = stage.clusters[0]
        self.name = name
        self.long = f"{name}/long"
        self.runs: dict[str, list[dict[str, Any]]] = {}
        self.ended: dict[str, float] = {}
        self.enqueued: dict[str, float] = {}
        self.pending: dict[str, str] = {}
        self.recorded: dict[str, float] = {}
        self.heal_at: float | None = None
        self._nonces: dict[str, str] = {}
        self._reader = LedgerReader(stage.ledger)

    def go(self, strike: Strike) -> None:
        """Run jobs, cause the fault, and continue until all jobs have ended."""
        from tests.crash import tasks

        self.pending[self.long] = tasks.plain.enqueue(self.long, LONG_SECONDS).id
        while self.long not in self.runs or len(self.recorded) < 3:
            self._step()
        struck = now()
        strike(self)
        while now() < struck + FELT_SECONDS or self.long in self.pending or self.heal_at:
            self._step()
        while self.pending:
            self._look()
        self._report(struck)

    def partition(self) -> None:
        """Cut the cluster off from the server for a while."""
        self.proxy.partition()
        self.heal_at = now() + PARTITION_SECONDS

    def lose_silently(self) -> None:
        """Silence all open connections."""
        self.proxy.lose_silently()

    def cut(self) -> None:
        """Reset all connections."""
        self.proxy.cut(by_reset=True)

    @property
    def server(self) -> Any:
        """Return the server that has the jobs: the broker's, if it is not the database."""
        return self.stage.servers[-1]

    @property
    def proxy(self) -> Any:
        """Return the proxy between the cluster and that server."""
        return self.server.proxies[self.cluster.name]

    def _step(self) -> None:
        from tests.crash import tasks

        token = f"{self.name}/{len(self.enqueued)}"
        began = now()
        with _forgiving():
            self.pending[token] = tasks.probe.enqueue(token).id
            self.enqueued[token] = began
        self._look()
        if self.heal_at and now() > self.heal_at:
            self.proxy.heal()
            self.heal_at = None
        if not self.cluster.is_running():
            self.cluster.start()
        time.sleep(EVERY_SECONDS)

    def _look(self) -> None:
        from tests.crash import tasks

        for line in self._reader:
            if line["event"] == "started":
                self.runs.setdefault(line["token"], []).append(line)
                self._nonces[line["nonce"]] = line["token"]
            elif line["event"] == "ended" and line["nonce"] in self._nonces:
                self.ended[self._nonces[line["nonce"]]] = line["at"]
        backend: Any = tasks.probe.get_backend()
        for token, job in list(self.pending.items())[:20]:
            with _forgiving():
                if backend.get_result(job).is_finished:
                    self.recorded[token] = now()
                    del self.pending[token]

    def _report(self, struck: float) -> None:
        self._look()
        short = [token for token in self.enqueued if token in self.runs]
        start = max(self.runs[token][0]["at"] - self.enqueued[token] for token in short)
        record = max(self.recorded[token] - self.ended[token] for token in short)
        again = [line["at"] - struck for line in self.runs[self.long] if line["at"] > struck]
        long = f"again after {again[0]:.1f} s" if again else "goes on"
        print(f"| {self.name} | {start:.1f} s | {record:.1f} s | {long} |", flush=True)


class _forgiving:  # noqa: N801 - it reads as suppress() does
    """Ignore errors while the database is down, and close the connection."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        if not isinstance(error, Exception):
            return False
        from django.db import connection

        with suppress(Exception):
            connection.close()
        return True


def _send(role: str, number: signal.Signals = signal.SIGKILL) -> Strike:
    def strike(measured: Measurement) -> None:
        measured.cluster.send(number, measured.cluster.having(role)[:1])

    return strike


def _kill_running_worker(measured: Measurement) -> None:
    os.kill(measured.runs[measured.long][0]["pid"], signal.SIGKILL)


def _restart_server(measured: Measurement) -> None:
    measured.server.private.stop()
    measured.server.private.start()


def _lose_host(measured: Measurement) -> None:
    """Start another cluster first, then lose the host of the first."""
    other = measured.stage.clusters[1]
    other.start()
    other.wait_until_complete(START_SECONDS)
    for server in measured.stage.servers:
        server.proxies[measured.cluster.name].lose_silently()
    lost = measured.cluster
    lost.send(signal.SIGKILL, [process for _, process in lost.members()])
    measured.cluster = other


FAULTS: dict[str, Strike] = {
    "none": lambda _: None,
    "the worker of the long job is killed": _kill_running_worker,
    "the pusher is killed": _send("pusher"),
    "the monitor is killed": _send("monitor"),
    "the sentinel is killed, and started again at once": _send("sentinel"),
    "the pusher stands still": _send("pusher", signal.SIGSTOP),
}
SERVER_FAULTS: dict[str, Strike] = {
    "the server is restarted": _restart_server,
    "all connections to the server are reset": Measurement.cut,
    "all connections go silent, new ones work": Measurement.lose_silently,
    f"the server cannot be reached for {PARTITION_SECONDS:.0f} s": Measurement.partition,
    "the host is lost, another cluster is there": _lose_host,
}


def main() -> int:
    """Measure the faults that can happen with the broker. SQLite has no server."""
    broker, *words = sys.argv[1:]
    faults = FAULTS if broker == "sqlite" else {**FAULTS, **SERVER_FAULTS}
    stages.OPTIONS.clear()
    stages.OPTIONS.update(WORKERS=2)
    with Stage(broker, 2) as stage:
        os.environ.update(stage.environment(None))
        sys.path.insert(0, str(stage.source))
        import django

        django.setup()
        stage.clusters = [Cluster(stage, number) for number in range(2)]
        stage.clusters[0].start()
        stage.clusters[0].wait_until_complete(START_SECONDS)
        print("| fault | start | record | long job |\n| --- | --- | --- | --- |")
        for name, strike in faults.items():
            if all(word in name for word in words):
                Measurement(stage, name).go(strike)
                stage.clusters[0].wait_until_complete(START_SECONDS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
