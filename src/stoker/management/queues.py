"""``manage.py stoker pause``, ``resume`` and ``clear``: operations on queues."""

from __future__ import annotations

from typing import Any

from stoker.operations.queues import CLEAR, PAUSE, RESUME

from .bar import bar
from .subcommand import (
    BACKEND,
    BECAUSE,
    BY,
    DRY_RUN,
    JSON,
    ExitCode,
    Subcommand,
    limit,
    option,
)

QUEUE = option("queue", metavar="QUEUE", help="The name of the queue.")


class PauseQueue(Subcommand):
    """Pause a queue: no cluster starts its jobs.

    Stop all clusters from starting jobs of this queue until `stoker resume`. This takes effect
    within a second and survives restarts. Running jobs continue; claimed jobs that have not
    started are released, and the attempt does not count. Jobs may still be enqueued. `stoker
    info` shows paused queues. If the queue is already paused, nothing changes, and the answer
    says since when.

    --json writes one object: queue, paused {since, by, because}.

    Examples:
      manage.py stoker pause mail --because "the provider is down"
    """

    name = "pause"
    options = (QUEUE, BACKEND, JSON, BY, BECAUSE)

    def run(self, options: dict[str, Any]) -> ExitCode:
        queue = options["queue"]
        done = PAUSE.perform(self.operator(options), queue)
        self.answer(options, {"queue": queue, "paused": done.value}, [done.sentence])
        return ExitCode.DONE


class ResumeQueue(Subcommand):
    """Resume a paused queue: its jobs start again.

    Resume a paused queue: within a second, every cluster that serves it starts its jobs again.

    --json writes one object: queue, was_paused (true, false).

    Examples:
      manage.py stoker resume mail
    """

    name = "resume"
    options = (QUEUE, BACKEND, JSON)

    def run(self, options: dict[str, Any]) -> ExitCode:
        queue = options["queue"]
        done = RESUME.perform(self.operator(options), queue)
        self.answer(options, {"queue": queue, "was_paused": done.value}, [done.sentence])
        return ExitCode.DONE


class ClearQueue(Subcommand):
    """Cancel the jobs that wait in a queue.

    Cancel the jobs that wait in a queue, including deferred and blocked jobs. Each is kept as
    CANCELLED, with the user and the reason. Running jobs continue. Jobs that are enqueued
    meanwhile may be cancelled, too: pause the queue first.

    Amazon SQS, Disque and IronMQ cannot list the jobs that no cluster has received. They delete
    all of them, without a record, and the answer says how many. With --limit they delete none if
    there are more.

    --json writes one object: queue, matched, done, not_kept, dry_run.

    Examples:
      manage.py stoker clear mail --dry-run
      manage.py stoker clear mail --because "yesterday's news"
    """

    name = "clear"
    options = (QUEUE, BACKEND, JSON, BY, BECAUSE, limit(None, "Maximum number."), DRY_RUN)

    def run(self, options: dict[str, Any]) -> ExitCode:
        queue, dry_run = options["queue"], options["dry_run"]
        with bar("cancelling jobs"):
            done = CLEAR.perform(
                self.operator(options), queue, limit=options["limit"], dry_run=dry_run
            )
        cleared = done.value
        plain = {
            "queue": queue,
            "matched": cleared.matched,
            "done": cleared.done,
            "not_kept": cleared.not_kept,
            "dry_run": dry_run,
        }
        self.answer(options, plain, [done.sentence])
        return ExitCode.DONE
