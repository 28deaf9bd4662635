"""``manage.py stoker health``: check whether a cluster works."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from django.core.management.base import CommandParser
from django.db import DatabaseError, InterfaceError

from stoker.cluster import board as place
from stoker.cluster.board import Board, board_path, store_mark
from stoker.cluster.loops import hang_seconds, loop_ages
from stoker.cluster.plan import Plan
from stoker.conf import Settings
from stoker.exceptions import StokerError
from stoker.inspect.stats import ClusterState, longest_silence
from stoker.operations.clusters import health_of
from stoker.values.text import first_line_of

from .arguments import positive_seconds
from .subcommand import BACKEND, ExitCode, Subcommand, backend_settings, refuse


class HealthCommand(Subcommand):
    """Check whether a cluster is alive.

    Exit code 0: a cluster of this backend is alive. The loop that claims its jobs has written a
    heartbeat within --max-silence seconds, and it is not stopping. A quiet cluster counts: a
    restart would undo the request to take no more jobs.
    Exit code 1: there is none; one sentence says why.
    Exit code 2: unknown, because the store is unreachable or the settings are wrong.

    With --local the database is not used: the file that the processes of a cluster share on
    this host says whether they still work. It says nothing about the store, so it is the right
    check for a liveness probe, which restarts the cluster. Exit code 0: a cluster of this
    backend, started by the same user, has a process on this host, and its pusher, monitor and
    scheduler have all responded within --max-silence seconds (default: the time after which the
    cluster itself kills a hung process). Exit code 1: there is none.

    Examples:
      manage.py stoker health                      on this host
      manage.py stoker health --any-host           on any host
      manage.py stoker health --local              as a liveness probe
    """

    name = "health"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(*BACKEND.flags, **BACKEND.terms)
        parser.add_argument(
            "--max-silence",
            type=positive_seconds,
            metavar="SECONDS",
            help="Maximum age of the last heartbeat. Default: three HEARTBEAT_SECONDS, but no "
            "less than one of them plus DATABASE_SECONDS.",
        )
        where = parser.add_mutually_exclusive_group()
        where.add_argument(
            "--any-host", action="store_true", help="Accept a cluster on another host."
        )
        where.add_argument(
            "--local",
            action="store_true",
            help="Do not use the database: check whether the loops of a cluster on this host run.",
        )
        parser.add_argument(
            "--json",
            action="store_true",
            help="Write a JSON object instead: healthy (true, false; null for exit code 2), reason "
            "(the sentence), max_silence_seconds; backend, host (null with --any-host), clusters "
            "(as in `info --json`); with --local boards {file: {role: seconds since its loop "
            "turned}} instead of these three.",
        )

    def run(self, options: dict[str, Any]) -> ExitCode:
        if options["local"]:
            return self._run_locally(options)
        settings = self.settings(options)
        host = None if options["any_host"] else socket.gethostname()
        max_silence = options["max_silence"] or longest_silence(settings)
        verdict, clusters = look(settings, host, max_silence)
        where = {"backend": settings.alias, "host": host, "clusters": clusters}
        return self._tell(options, verdict, max_silence_seconds=max_silence, **where)

    def _run_locally(self, options: dict[str, Any]) -> ExitCode:
        settings = backend_settings(options["backend"])
        max_silence = options["max_silence"] or hang_seconds(settings)
        loops = {str(path): ages for path, ages in local_clusters(settings)}
        verdict = judge_loops(loops, max_silence, settings.alias)
        return self._tell(options, verdict, max_silence_seconds=max_silence, boards=loops)

    def _tell(self, options: dict[str, Any], verdict: HealthVerdict, **facts: Any) -> ExitCode:
        if verdict.code is not ExitCode.DONE and not options["json"]:
            raise refuse(verdict.sentence, verdict.code)
        plain = {"healthy": HEALTHY[verdict.code], "reason": verdict.sentence, **facts}
        self.answer(options, plain, [verdict.sentence])
        return verdict.code


class HealthVerdict(NamedTuple):
    """The exit code, and one sentence with the reason."""

    code: ExitCode
    sentence: str


HEALTHY = {ExitCode.DONE: True, ExitCode.NO: False, ExitCode.REFUSED: None}


def look(
    settings: Settings, host: str | None, max_silence_seconds: float
) -> tuple[HealthVerdict, Sequence[ClusterState]]:
    """Return the verdict on the clusters of a host (None = of all hosts), and these clusters."""
    try:
        health, known = health_of(settings, host, max_silence_seconds)
    except (StokerError, DatabaseError, InterfaceError) as error:
        return HealthVerdict(ExitCode.REFUSED, first_line_of(error)), ()
    code = ExitCode.DONE if health.is_good else ExitCode.NO
    return HealthVerdict(code, health.sentence), known


def local_clusters(settings: Settings) -> Iterator[tuple[Path, Mapping[str, float]]]:
    """Yield the boards of live clusters of this backend, host and user, with the ages of their
    loops."""
    mark = store_mark(settings)
    folder = board_path(Plan().cluster_id).parent
    for path in sorted(folder.glob("cluster-*.board")):
        board = Board.of_the_living(path)
        if board is not None:
            if board[place.STORE] == mark:
                yield path, loop_ages(board)
            board.close()


def judge_loops(
    boards: Mapping[str, Mapping[str, float]], max_silence_seconds: float, alias: str = "default"
) -> HealthVerdict:
    """Return whether all loops of at least one cluster have turned recently."""
    if not boards:
        sentence = f"No process of a cluster of the backend {alias!r} is on this host."
        return HealthVerdict(ExitCode.NO, sentence)
    ages = min(boards.values(), key=lambda one: max(one.values()))
    slowest = max(ages, key=lambda role: ages[role])
    if ages[slowest] > max_silence_seconds:
        sentence = (
            f"The {slowest} of the cluster on this host has not responded for {ages[slowest]:.1f} "
            f"s: more than {max_silence_seconds:g} s."
        )
        return HealthVerdict(ExitCode.NO, sentence)
    return HealthVerdict(ExitCode.DONE, "A cluster runs on this host, and none of its loops hangs.")
