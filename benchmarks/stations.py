"""List the files that one successful job passes through: `scripts/stations [postgres redis ...]`.

A tracer runs in the process that enqueues and in the cluster's pusher, worker and monitor. It notes
every call of a function of Stoker, first while the cluster is idle, then while one job is enqueued,
run and recorded. A call is on the way of the job if the idle cluster makes no call of that function
with such a result (true or false). With it come the calls that it makes and those that led to it.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import django

from benchmarks.cluster import ROOT, RunningCluster, running_cluster
from benchmarks.databases import NAMES, database
from tests.servers.redis import PrivateRedis

SOURCE = f"{ROOT}/src/stoker/"
PROCESSES = ("pusher", "worker", "monitor")
WARM_UP_JOBS = 50
IDLE_SECONDS = 8.0
"""Longer than any pause between two actions of a process in an idle cluster."""
BEFORE, IDLE, JOB, OVER = range(4)
"""Values of the byte that all processes share."""


@dataclass(slots=True)
class Call:
    """A call of a function of Stoker on the way of the job."""

    place: str
    """The file and the name of the function."""
    began_ns: int
    callers: tuple[Call, ...]
    """The calls in which it was made, the outermost first."""
    is_on_the_way: bool = False


@dataclass
class Tracer:
    """Notes the calls in this process, and in those that it forks.

    Args:
        folder: where each process writes its calls.
    """

    folder: Path
    calls: list[Call] = field(default_factory=list)
    open: dict[int, list[Call]] = field(default_factory=lambda: defaultdict(list))
    """Thread -> its calls that have not returned."""
    idle: set[tuple[str, bool]] = field(default_factory=set)
    pid: int = 0

    def __post_init__(self) -> None:
        with (self.folder / "phase").open("r+b") as phase:
            self._phase = mmap.mmap(phase.fileno(), 1)

    @property
    def phase(self) -> int:
        """The current phase."""
        return self._phase[0]

    @phase.setter
    def phase(self, phase: int) -> None:
        self._phase[0] = phase

    def start(self) -> None:
        """Trace this thread, and all threads and processes that it starts."""
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def write(self) -> None:
        """Write the calls on the way of the job to a file."""
        on_the_way = set()
        for call in self.calls:
            call.is_on_the_way |= any(one.is_on_the_way for one in call.callers)
        for call in self.calls:
            if call.is_on_the_way:
                on_the_way |= {(one.began_ns, one.place) for one in (call, *call.callers)}
        name = Path("/proc/self/comm").read_text(encoding="ascii").strip()
        report = self.folder / f"{os.getpid()}.json"
        report.write_text(json.dumps([name, sorted(on_the_way)]), encoding="utf-8")

    def _note(self, frame: FrameType, event: str, argument: object) -> None:
        phase = self._phase[0]
        code = frame.f_code
        if phase == OVER:
            sys.setprofile(None)
            if self.pid == os.getpid():
                self.pid = 0
                self.write()
        elif phase != BEFORE and code.co_filename.startswith(SOURCE):
            self.pid = os.getpid()
            if phase == JOB and event == "call":
                self._enter(code)
            elif event == "return":
                self._leave(code, bool(argument), is_idle=phase == IDLE)

    def _enter(self, code: CodeType) -> None:
        mine = self.open[threading.get_ident()]
        call = Call(place_of(code), time.monotonic_ns(), tuple(mine))
        mine.append(call)
        self.calls.append(call)

    def _leave(self, code: CodeType, is_true: bool, *, is_idle: bool) -> None:
        if is_idle:
            self.idle.add((place_of(code), is_true))
            return
        mine = self.open[threading.get_ident()]
        if mine and mine[-1].place == place_of(code):
            mine.pop().is_on_the_way = (place_of(code), is_true) not in self.idle


def place_of(code: CodeType) -> str:
    """Return the file and the name of a function."""
    return f"{code.co_filename.removeprefix(SOURCE)} {code.co_qualname}"


def trace_cluster(folder: Path) -> None:
    """Run a cluster whose processes are traced."""
    from django.core.management import execute_from_command_line

    Tracer(folder).start()
    execute_from_command_line(["django", "stoker", "run"])


def trace_job(folder: Path, cluster: RunningCluster) -> None:
    """Enqueue one job on an idle cluster, and wait until its result is recorded."""
    from stoker.brokers.adapters import broker_for
    from stoker.conf import settings_for

    from benchmarks.tasks import nothing

    tracer, broker = Tracer(folder), broker_for(settings_for())
    for number in range(WARM_UP_JOBS):
        _wait_for(nothing.enqueue(number), cluster)
    tracer.phase = IDLE
    time.sleep(IDLE_SECONDS)
    tracer.phase = JOB
    sys.setprofile(tracer._note)
    result = nothing.enqueue(0)
    sys.setprofile(None)
    _wait_for(result, cluster)
    cluster.wait_until(lambda: not any(map(sum, (one.values() for one in broker.sizes().values()))))
    time.sleep(0.1)  # until the worker has the job
    tracer.phase = OVER
    tracer.write()


def _wait_for(result: Any, cluster: RunningCluster) -> None:
    def is_over() -> bool:
        result.refresh()
        return bool(result.is_finished)

    cluster.wait_until(is_over)


def files_of(folder: Path) -> Iterator[tuple[str, str, list[str]]]:
    """Return each file with the process that reached it first and the names of its functions, in
    the order in which the job reached them."""
    reports = [json.loads(one.read_text(encoding="utf-8")) for one in folder.glob("*.json")]
    calls = [
        (began_ns, name, *place.split(" "))
        for name, places in reports
        for began_ns, place in places
        if any(one in name for one in PROCESSES) or "stoker" not in name
    ]
    functions: dict[str, list[str]] = {}
    first: dict[str, str] = {}
    for _, name, file, function in sorted(calls):
        first.setdefault(file, name)
        if function not in functions.setdefault(file, []):
            functions[file].append(function)
    for file, name in first.items():
        yield file, name, functions[file]


@contextmanager
def stand(name: str) -> Iterator[None]:
    """Start the servers for a database, or for a broker with PostgreSQL as its store."""
    with ExitStack() as stack:
        options: dict[str, Any] = {"WORKERS": 1}
        if name == "redis":
            options["BROKER"] = stack.enter_context(PrivateRedis()).url
        store = stack.enter_context(database(name if name in NAMES else "postgres"))
        os.environ["STOKER_BENCH_OPTIONS"] = json.dumps(options)
        os.environ["STOKER_BENCH_DATABASE"] = json.dumps(store.entry)
        os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
        yield


def list_stations(name: str, *, names_functions: bool) -> None:
    """Trace one job in a separate process, because Django is set up once per process."""
    with stand(name), tempfile.TemporaryDirectory(prefix="stoker-stations-") as folder:
        path = Path(folder)
        (path / "phase").write_bytes(bytes([BEFORE]))
        os.environ["STOKER_STATIONS"] = folder
        if (pid := os.fork()) == 0:
            from django.core.management import call_command

            django.setup()
            call_command("migrate", verbosity=0)
            with running_cluster(path, "benchmarks.stations") as cluster:
                trace_job(path, cluster)
            os._exit(0)
        if os.waitpid(pid, 0)[1]:
            raise SystemExit(f"{name}: the job was not traced")
        found = list(files_of(path))
    print(f"{name}: {len(found)} files")
    for number, (file, process, functions) in enumerate(found, 1):
        print(f"  {number:2} {process:16} {file}")
        if names_functions:
            print(f"     {'':16}   {', '.join(functions)}")


def main() -> None:
    """Print the list for each name."""
    if folder := os.environ.get("STOKER_STATIONS"):
        trace_cluster(Path(folder))
        return
    parser = argparse.ArgumentParser(prog="scripts/stations", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join((*NAMES, "redis")))
    parser.add_argument("--functions", action="store_true", help="name the functions, too")
    arguments = parser.parse_args()
    for name in arguments.names or ("postgres", "redis"):
        list_stations(name, names_functions=arguments.functions)


if __name__ == "__main__":
    main()
