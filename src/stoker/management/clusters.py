"""``manage.py stoker clusters``: looks at clusters, and asks them to be quiet or to stop."""

from __future__ import annotations

from typing import Any, ClassVar

from django.core.management.base import CommandParser

from stoker.exceptions import ClusterNotFound
from stoker.operations import clusters
from stoker.values.durations import in_words

from .subcommand import (
    ExitCode,
    Subcommand,
    SubcommandGroup,
    add_backend,
    as_json,
    backend_settings,
    one_sentence,
    refuse,
    within_deadlines,
)


class ListClusters(Subcommand):
    name = "list"
    summary = "List the clusters that run."
    description = """\
List the clusters of this backend, the longest running first: id, name, host, process, state
(running, quiet or stopping), and how long ago the last sign of life was.

--json writes one object: clusters[], as in `info --json`."""
    examples = """\
  manage.py stoker clusters list
  manage.py stoker clusters list --json | jq -r '.clusters[].id'"""

    def add_arguments(self, parser: CommandParser) -> None:
        add_backend(parser)
        parser.add_argument(
            "--json", action="store_true", help="Write one JSON object, as described above."
        )

    def run(self, options: dict[str, Any]) -> ExitCode:
        found = clusters.find(backend=_alias(options))
        if options["json"]:
            self.say(as_json({"clusters": found}))
            return ExitCode.DONE
        for one in found:
            self.say(
                f"{one.id}  {one.name} on {one.host}, process {one.pid}: {one.state}, last sign of "
                f"life {in_words(one.silent_seconds)} ago, {len(one.workers)} workers, "
                f"{one.leases:,} jobs"
            )
        if not found:
            self.say("none")
        return ExitCode.DONE


class _Ask(Subcommand):
    """Asks clusters for something."""

    asked: ClassVar[str]
    """What they were, in the end."""

    def ask(self, cluster_id: str, alias: str) -> bool:
        raise NotImplementedError  # each command has its own

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "clusters",
            nargs="*",
            default=[],
            metavar="ID",
            help="Ids of clusters (see `clusters list`).",
        )
        parser.add_argument("--all", action="store_true", help="All clusters of this backend.")
        add_backend(parser)

    def run(self, options: dict[str, Any]) -> ExitCode:
        alias = _alias(options)
        if bool(options["clusters"]) == options["all"]:
            raise refuse("Say which clusters by their ids, or --all.")
        wanted = options["clusters"] or [one.id for one in clusters.find(backend=alias)]
        code = ExitCode.DONE
        for cluster_id in wanted:
            try:
                is_asked = self.ask(cluster_id, alias)
            except ClusterNotFound as error:
                self.remark(one_sentence(error))
                code = ExitCode.NO
                continue
            self.say(f"{cluster_id}: {self.asked if is_asked else 'it is stopping already'}")
            code = code if is_asked else ExitCode.NO
        return code


class Quiet(_Ask):
    name = "quiet"
    summary = "Ask clusters to take no more jobs."
    description = """\
Ask clusters to take no more jobs. What runs goes on, what had not started goes back to its queue.
They do so within a second, and until `clusters resume` or their end."""
    examples = """\
  manage.py stoker clusters quiet --all
  manage.py stoker clusters quiet 0192f1c4-5f0e-7a51-9c35-2f4b8b3a7c10"""
    asked = "asked to take no more jobs"

    def ask(self, cluster_id: str, alias: str) -> bool:
        return clusters.quiet(cluster_id, backend=alias)


class Resume(_Ask):
    name = "resume"
    summary = "Ask clusters to take jobs again."
    description = "Ask clusters that were told to be quiet to take jobs again."
    examples = """\
  manage.py stoker clusters resume --all"""
    asked = "asked to take jobs again"

    def ask(self, cluster_id: str, alias: str) -> bool:
        return clusters.resume(cluster_id, backend=alias)


class Stop(_Ask):
    name = "stop"
    summary = "Ask clusters to stop."
    description = """\
Ask clusters to stop, as SIGTERM does: running jobs have SHUTDOWN_SECONDS to finish. Whatever
started a cluster may start another in its place; this does not keep it from that."""
    examples = """\
  manage.py stoker clusters stop 0192f1c4-5f0e-7a51-9c35-2f4b8b3a7c10"""
    asked = "asked to stop"

    def ask(self, cluster_id: str, alias: str) -> bool:
        return clusters.stop(cluster_id, backend=alias)


class Clusters(SubcommandGroup):
    name = "clusters"
    summary = "See clusters; ask them to be quiet, or to stop."
    description = """\
See the clusters that run, on whatever host, and ask them to take no more jobs, to take them again,
or to stop. The request goes through the store: nobody has to reach their host."""
    examples = """\
  manage.py stoker clusters list
  manage.py stoker clusters quiet --all"""
    parts = (ListClusters, Quiet, Resume, Stop)


def _alias(options: dict[str, Any]) -> str:
    return within_deadlines(backend_settings(options["backend"])).alias
