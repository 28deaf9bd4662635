"""``manage.py stoker health``: whether a cluster does its work."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any, NamedTuple

from django.core.management.base import CommandParser
from django.db import DatabaseError, InterfaceError

from stoker.clusters import judge as judge_clusters
from stoker.clusters import longest_silence
from stoker.conf import Settings
from stoker.exceptions import StokerError
from stoker.stats import ClusterState, clusters

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

A liveness probe that restarts the cluster should take 2 for alive: a restart mends no database."""
    examples = """\
  manage.py stoker health                      on this host
  manage.py stoker health --any-host           anywhere
  manage.py stoker health || [ $? -eq 2 ]      as a liveness probe"""

    def add_arguments(self, parser: CommandParser) -> None:
        add_backend(parser)
        parser.add_argument(
            "--max-silence",
            type=positive_seconds,
            metavar="SECONDS",
            help="How old the last sign of life may be. Default: three HEARTBEAT_SECONDS, but no "
            "less than one of them and a slow database (DATABASE_SECONDS) take.",
        )
        parser.add_argument(
            "--any-host",
            action="store_true",
            help="A cluster on another host will do.",
        )
        parser.add_argument(
            "--json",
            action="store_true",
            help="Write a JSON object instead: healthy (true, false; null for exit code 2), reason "
            "(the sentence), backend, host (null with --any-host), max_silence_seconds, clusters "
            "(as in `info --json`).",
        )

    def run(self, options: dict[str, Any]) -> ExitCode:
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
        elif verdict.code is ExitCode.DONE:
            self.say(verdict.sentence)
        else:
            raise refuse(verdict.sentence, verdict.code)
        return verdict.code


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


def judge(known: Sequence[ClusterState], max_silence_seconds: float) -> Verdict:
    """One that does its work is enough."""
    health = judge_clusters(known, max_silence_seconds)
    return Verdict(ExitCode.DONE if health.is_good else ExitCode.NO, health.sentence)
