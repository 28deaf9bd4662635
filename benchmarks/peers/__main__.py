"""Measure Stoker and other queues in one run: `make bench PEERS="pgqueuer procrastinate"`.

Stoker and the hand-written loop are always among them: on PostgreSQL, or with `--base redis` on
Redis, its results kept in PostgreSQL. In each round all have their turn, so that what disturbs
the machine for a while disturbs all of them. See README.md beside this.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil

from benchmarks.peers.conversation import PeerFailedError
from benchmarks.peers.environments import PeerUnavailableError, names, python_of
from benchmarks.peers.report import BASES, report
from benchmarks.peers.rounds import Load, Round, about
from benchmarks.peers.servers import KINDS, Server
from tests.servers.private import ServerUnavailableError

MOST_FAILURES = 2


def main() -> int:
    """Measure, and print the tables. Return 1 if Stoker could not be measured."""
    arguments = _arguments()
    load = Load(arguments.jobs, arguments.seconds, arguments.samples)
    run = Run(load, arguments.rounds, 60 * arguments.minutes)
    run.measured["bases"] = BASES[arguments.base]
    asked = [*BASES[arguments.base], *arguments.peers]
    with ExitStack() as stack:
        run.introduce(list(dict.fromkeys(asked)), stack)
        for _ in run.turns():
            if arguments.json:  # after each round, so that an interrupted run keeps its results
                arguments.json.write_text(json.dumps(run.measured, indent=1) + "\n")
    print(report(run.measured))
    return int(not run.measured["peers"].get(asked[0], {}).get("rounds"))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument(
        "peers",
        nargs="*",
        metavar="PEER",
        default=os.environ.get("PEERS", "").split(),
        help=f"NAME or NAME:VARIANT, of {', '.join(names())}",
    )
    parser.add_argument(
        "--base", choices=BASES, default="postgres", help="where Stoker and the loop by hand are"
    )
    parser.add_argument("--jobs", type=int, default=os.environ.get("JOBS") or "50000")
    parser.add_argument("--rounds", type=int, default=os.environ.get("ROUNDS") or "3")
    parser.add_argument("--seconds", type=float, default=5.0, help="about how long a drain is")
    parser.add_argument("--samples", type=int, default=40, help="jobs whose pick-up is timed")
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="no peer begins its turn after so many"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers there, too")
    return parser.parse_args()


class Run:
    """The rounds of all peers."""

    def __init__(self, load: Load, rounds: int, seconds: float) -> None:
        self._load = load
        self._until = time.monotonic() + seconds
        self._rounds = rounds
        self._pythons: dict[str, str] = {}
        self._servers: dict[str, Server] = {}
        self.measured: dict[str, Any] = {
            "date": dt.datetime.now(dt.UTC).date().isoformat(),
            "load": {"rounds": rounds, **vars(load)},
            "machine": {"cores": os.cpu_count(), "system": _system(), "servers": {}},
            "peers": {},
            "missing": {},
        }

    def introduce(self, asked: list[str], stack: ExitStack) -> None:
        """Install the peers, ask each for its description, and start the servers that they need."""
        for name in asked:
            try:
                python = python_of(name.partition(":")[0])
                statement = about(name, python)
                for kind in statement["servers"]:
                    self._start(kind, stack)
            except (PeerUnavailableError, PeerFailedError, ServerUnavailableError) as why:
                self.measured["missing"][name] = str(why)
                _say(f"{name}: {str(why).splitlines()[0]}: going on without it")
                continue
            self._pythons[name] = python
            self.measured["peers"][name] = {"about": statement, "rounds": [], "failures": []}

    def turns(self) -> Iterator[str]:
        """Run all rounds with all peers. Yield the name of each peer after its turn."""
        for number in range(1, self._rounds + 1):
            for name, peer in self.measured["peers"].items():
                if time.monotonic() > self._until:
                    _say(f"the time is over in round {number}, before {name}")
                    return
                if len(peer["failures"]) < MOST_FAILURES:
                    self._measure_once(number, name, peer)
                    yield name

    def _measure_once(self, number: int, name: str, peer: dict[str, Any]) -> None:
        servers = {kind: self._servers[kind] for kind in peer["about"]["servers"]}
        jobs = peer["rounds"][0]["jobs"] if peer["rounds"] else None
        try:
            found = Round(name, self._pythons[name], servers).run(self._load, jobs)
        except (PeerFailedError, psutil.Error) as why:
            peer["failures"].append({"round": number, "failed": str(why)})
            _say(f"round {number}, {name}: {why}")
            return
        peer["rounds"].append({"round": number, **found})
        _say(f"round {number}, {name}: {found['drain']:,.0f} jobs/s of {found['jobs']:,}")

    def _start(self, kind: str, stack: ExitStack) -> None:
        if kind not in KINDS:
            raise PeerUnavailableError(f"it needs {kind}, which the harness does not know")
        if kind not in self._servers:
            server = stack.enter_context(KINDS[kind]())
            self._servers[kind] = server
            self.measured["machine"]["servers"][kind] = server.version()


def _system() -> str:
    return f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
