"""``manage.py stoker health``: whether a cluster does its work."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from django.core.management.base import CommandParser
from django.db import DatabaseError, InterfaceError

from stoker.cluster.watch import hang_seconds, local_clusters
from stoker.conf import Settings
from stoker.exceptions import StokerError
from stoker.inspect.stats import ClusterState, clusters
from stoker.operations.clusters import judge as judge_clusters
from stoker.operations.clusters import longest_silence

from .subcommand import (
    ExitCode,
    Subcommand,
    add_backend,
    as_json,
    backend_settings,
    one_sentence,
    positive_seconds,
    refuse,
    within_deadlines,
)


class Health(Subcommand):
    name = "health"
    summary = "Tell by the exit code whether a cluster does its work."
    description = """\
Exit code 0: a cluster of this backend is alive. It has written its sign of life within
--max-silence seconds, from the loop that fetches the jobs, and it is not being stopped. One that
was asked to be quiet counts: a restart would undo that.
Exit code 1: there is none; one sentence says why.
Exit code 2: nobody can say, for the store is out of reach, or the settings are wrong.

With --local nobody is asked: whether the loops of a cluster turn is read off the file that its
processes share on this host. It says nothing about the store, so it is what a liveness probe
should ask, which restarts the cluster. Exit code 0: a cluster of this backend, started by the same
user, has a process left here, and its pusher, monitor and scheduler have all moved within
--max-silence seconds (default: as long as a hung one is left alone). Exit code 1: there is none."""
    examples = """\
  manage.py stoker health                      on this host
  manage.py stoker health --any-host           anywhere
  manage.py stoker health --local              as a liveness probe"""

    def add_arguments(self, parser: CommandParser) -> None:
        add_backend(parser)
        parser.add_argument(
            "--max-silence",
            type=positive_seconds,
            metavar="SECONDS",
            help="How old the last sign of life may be. Default: three HEARTBEAT_SECONDS, but no "
            "less than one of them and a slow database (DATABASE_SECONDS) take.",
        )
        where = parser.add_mutually_exclusive_group()
        where.add_argument(
            "--any-host",
            action="store_true",
            help="Accept a cluster on another host.",
        )
        where.add_argument(
            "--local",
            action="store_true",
            help="Ask no database: do the loops of a cluster on this host turn?",
        )
        parser.add_argument(
            "--json",
            action="store_true",
            help="Write a JSON object instead: healthy (true, false; null for exit code 2), reason "
            "(the sentence), max_silence_seconds; backend, host (null with --any-host), clusters "
            "(as in `info --json`); with --local in their place boards {file: {role: seconds since "
            "its loop turned}}.",
        )

    def run(self, options: dict[str, Any]) -> ExitCode:
        if options["local"]:
            return self._run_locally(options)
        settings = within_deadlines(backend_settings(options["backend"]))
        host = None if options["any_host"] else socket.gethostname()
        max_silence = options["max_silence"] or longest_silence(settings)
        verdict, clusters = look(settings, host, max_silence)
        if options["json"]:
            shape = {
                "healthy": HEALTHY[verdict.code],
                "reason": verdict.sentence,
                "backend": settings.alias,
                "host": host,
                "max_silence_seconds": max_silence,
                "clusters": clusters,
            }
            self.say(as_json(shape))
        else:
            self._tell(verdict)
        return verdict.code

    def _run_locally(self, options: dict[str, Any]) -> ExitCode:
        settings = backend_settings(options["backend"])
        max_silence = options["max_silence"] or hang_seconds(settings)
        loops = {str(path): ages for path, ages in local_clusters(settings)}
        verdict = judge_loops(loops, max_silence, settings.alias)
        if options["json"]:
            shape = {
                "healthy": HEALTHY[verdict.code],
                "reason": verdict.sentence,
                "max_silence_seconds": max_silence,
                "boards": loops,
            }
            self.say(as_json(shape))
        else:
            self._tell(verdict)
        return verdict.code

    def _tell(self, verdict: Verdict) -> None:
        if verdict.code is not ExitCode.DONE:
            raise refuse(verdict.sentence, verdict.code)
        self.say(verdict.sentence)


class Verdict(NamedTuple):
    """How things are, and why."""

    code: ExitCode
    sentence: str


HEALTHY = {ExitCode.DONE: True, ExitCode.NO: False, ExitCode.REFUSED: None}


def look(
    settings: Settings, host: str | None, max_silence_seconds: float
) -> tuple[Verdict, list[ClusterState]]:
    """The verdict on the clusters of a host (None = of any), and those."""
    try:
        known = clusters(settings)
    except (StokerError, DatabaseError, InterfaceError) as error:
        return Verdict(ExitCode.REFUSED, one_sentence(error)), []
    asked_for = [one for one in known if host is None or one.host == host]
    if asked_for:
        return judge(asked_for, max_silence_seconds), asked_for
    where = "on any host" if host is None else f"on {host}"
    sentence = (
        f"No cluster of the backend {settings.alias!r} runs {where}: start one by `stoker run`."
    )
    return Verdict(ExitCode.NO, sentence), []


def judge_loops(
    boards: Mapping[str, Mapping[str, float]], max_silence_seconds: float, alias: str = "default"
) -> Verdict:
    """One cluster whose loops all turn is enough."""
    if not boards:
        sentence = f"No process of a cluster of the backend {alias!r} is on this host."
        return Verdict(ExitCode.NO, sentence)
    ages = min(boards.values(), key=lambda one: max(one.values()))
    slowest = max(ages, key=lambda role: ages[role])
    if ages[slowest] > max_silence_seconds:
        sentence = (
            f"The {slowest} of the cluster on this host has not moved for {ages[slowest]:.1f} s: "
            f"more than {max_silence_seconds:g} s."
        )
        return Verdict(ExitCode.NO, sentence)
    return Verdict(ExitCode.DONE, "A cluster is on this host, and all of its loops turn.")


def judge(known: Sequence[ClusterState], max_silence_seconds: float) -> Verdict:
    """One that does its work is enough."""
    health = judge_clusters(known, max_silence_seconds)
    return Verdict(ExitCode.DONE if health.is_good else ExitCode.NO, health.sentence)
