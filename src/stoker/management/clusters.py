"""``manage.py stoker clusters``: list clusters, and request changes of them."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Iterator
from typing import Any, ClassVar

from stoker.exceptions import ClusterNotFound
from stoker.inspect.stats import ClusterState, longest_silence, state_of
from stoker.operations import clusters
from stoker.operations.operation import Done, Operation
from stoker.values.durations import in_words
from stoker.values.text import first_line_of, plural

from .subcommand import (
    BACKEND,
    BY,
    JSON,
    ExitCode,
    Option,
    Subcommand,
    SubcommandGroup,
    no_cluster,
    option,
    refuse,
)


class ListClusters(Subcommand):
    """List the running clusters.

    List the clusters of this backend, the longest running first: id, name, host, process, state
    (running, quiet, stopping, or silent if the last heartbeat is too old: it may be dead), how long
    ago the last heartbeat was, and the number of workers. A worker that is leaving exits after its
    running jobs.

    --json writes one object: clusters[], as in `info --json`.

    Examples:
      manage.py stoker clusters list
      manage.py stoker clusters list --json | jq -r '.clusters[].id'
    """

    name = "list"
    options = (BACKEND, JSON)

    def run(self, options: dict[str, Any]) -> ExitCode:
        settings = self.settings(options)
        found, longest = clusters.find(backend=settings.alias), longest_silence(settings)
        lines = [line for one in found for line in self._lines(one, state_of(one, longest))]
        self.answer(options, {"clusters": found}, lines or [no_cluster(settings)])
        return ExitCode.DONE

    def _lines(self, one: ClusterState, state: str) -> Iterator[str]:
        yield f"{one.id}  {state}"
        yield f"  {one.name} on {one.host}, process {one.pid}"
        silent = in_words(one.silent_seconds)
        leaving = sum(worker.is_leaving for worker in one.workers)
        workers = plural(len(one.workers), "worker") + (f" ({leaving} leaving)" if leaving else "")
        yield f"  seen {silent} ago, {workers}, {plural(one.leases, 'job')}"


TARGETS = (
    option(
        "clusters",
        nargs="*",
        default=[],
        metavar="ID",
        help="Ids of clusters (see `clusters list`).",
    ),
    option("--all", action="store_true", help="All clusters of this backend."),
    BY,
    BACKEND,
    JSON,
)


def _number_of_workers(text: str) -> str:
    """Return the number as the operation takes it: "" = as at the start."""
    if text == "start":
        return ""
    if not (text.isascii() and text.isdigit()):
        raise ArgumentTypeError(f"give a number of workers or the word start, not {text[:20]!r}")
    return text


class _AskClusters(Subcommand):
    operation: ClassVar[Operation]
    options: ClassVar[tuple[Option, ...]] = TARGETS

    def run(self, options: dict[str, Any]) -> ExitCode:
        if bool(options["clusters"]) == options["all"]:
            raise refuse("Name clusters by their ids, or give --all.")
        operator, answers, lines = self.operator(options), [], []
        given = {name: options[name] for name in self.operation.takes}
        taken = {name: "" if value is None else str(value) for name, value in given.items()}
        known = options["clusters"] or [one.id for one in clusters.find(backend=operator.alias)]
        for cluster_id in known:
            try:
                done = self.operation.perform(operator, cluster_id, **taken)
                lines.append(f"{cluster_id}: {done.sentence}")
            except ClusterNotFound as error:
                done = Done(first_line_of(error), is_good=False)
                self.remark(done.sentence)
            answers.append({"id": cluster_id, "is_done": done.is_good, "sentence": done.sentence})
        lines = lines if known else [no_cluster(operator.settings)]
        self.answer(options, {"clusters": answers}, lines)
        return ExitCode.DONE if all(one["is_done"] for one in answers) else ExitCode.NO


class QuietClusters(_AskClusters):
    """Ask clusters to take no more jobs.

    Ask clusters to take no more jobs. Running jobs continue, others go back to their queue. This
    takes a second, and holds until `clusters resume` or until the cluster ends.

    --json writes one object: clusters[] {id, is_done, sentence}.

    Examples:
      manage.py stoker clusters quiet --all
      manage.py stoker clusters quiet 0192f1c4-5f0e-7a51-9c35-2f4b8b3a7c10
    """

    name = "quiet"
    operation = clusters.QUIET


class ResumeClusters(_AskClusters):
    """Ask quiet clusters to take jobs again.

    Ask quiet clusters to take jobs again, which takes a second.

    --json writes one object: clusters[] {id, is_done, sentence}.

    Examples:
      manage.py stoker clusters resume --all
    """

    name = "resume"
    operation = clusters.RESUME


class StopClusters(_AskClusters):
    """Ask clusters to stop.

    Ask clusters to stop, as SIGTERM does: running jobs have SHUTDOWN_SECONDS to finish. The process
    manager that started a cluster may start it again; this command cannot prevent that.

    --json writes one object: clusters[] {id, is_done, sentence}.

    Examples:
      manage.py stoker clusters stop 0192f1c4-5f0e-7a51-9c35-2f4b8b3a7c10
    """

    name = "stop"
    operation = clusters.STOP


class ResizeClusters(_AskClusters):
    """Change the number of workers of clusters.

    Set the number of workers of running clusters. A cluster keeps the new number until it stops or
    is resized again. New workers start within a second. Surplus workers finish their running jobs
    and exit. The maximum is the setting MAX_WORKERS, by default twice WORKERS.

    --json writes one object: clusters[] {id, is_done, sentence}.

    Examples:
      manage.py stoker clusters resize --workers 6 --all
      manage.py stoker clusters resize --workers start --all    as many as at their start
    """

    name = "resize"
    operation = clusters.RESIZE
    options = (
        option(
            "--workers",
            type=_number_of_workers,
            required=True,
            metavar="N",
            help="The new number of workers of each cluster; start = its number at the start.",
        ),
        *TARGETS,
    )


class RecycleClusters(_AskClusters):
    """Replace workers by new processes.

    Ask clusters to replace their workers, for example because one has grown too large. Each worker
    finishes its running jobs and exits, and a new process takes its place at once.

    --json writes one object: clusters[] {id, is_done, sentence}.

    Examples:
      manage.py stoker clusters recycle --all
      manage.py stoker clusters recycle --worker 0 0192f1c4-5f0e-7a51-9c35-2f4b8b3a7c10
    """

    name = "recycle"
    operation = clusters.RECYCLE
    options = (
        option(
            "--worker",
            type=int,
            metavar="N",
            help="Only the worker with this number, from 0. Default: all workers.",
        ),
        *TARGETS,
    )


class ClustersCommand(SubcommandGroup):
    """List, quiet, resume, stop, resize, recycle clusters.

    List the running clusters of all hosts, and ask them to take no more jobs, to take jobs again,
    to stop, to change their number of workers, or to replace workers. The request is stored in the
    database, so no access to their hosts is needed.

    Examples:
      manage.py stoker clusters list
      manage.py stoker clusters quiet --all
    """

    name = "clusters"
    parts = (
        ListClusters,
        QuietClusters,
        ResumeClusters,
        StopClusters,
        ResizeClusters,
        RecycleClusters,
    )
