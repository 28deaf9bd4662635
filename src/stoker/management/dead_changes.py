"""``manage.py stoker dead requeue``, ``discard`` and ``purge``."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from django.core.management.base import CommandParser

from stoker.dead_letters import service as dead_letters
from stoker.dead_letters.service import Answer, Bulk, Fate

from .bar import bar
from .enqueue import json_of, moment
from .labels import FILTERS, add_filters, duration, filters_of, positive
from .subcommand import (
    ExitCode,
    Subcommand,
    add_backend,
    as_json,
    backend_settings,
    positive_seconds,
    refuse,
    user,
    within_deadlines,
)

MOST_SHOWN = 20


def say_bulk(command: Subcommand, bulk: Bulk, done: str, options: dict[str, Any]) -> ExitCode:
    """How many were done, and why others were not.

    Args:
        done: how it is called when it is done, as "requeued".
        options: with ``json`` and ``dry_run``.

    Returns:
        What the command ends with.
    """
    if options["json"]:
        others = [
            {
                "id": str(one.dead_letter_id),
                "fate": one.fate.value,
                "job_id": None if one.job_id is None else str(one.job_id),
                "because": one.because,
            }
            for one in bulk.others
        ]
        shape = {"matched": bulk.matched, "done": bulk.done, "others": others}
        command.say(as_json({**shape, "dry_run": options["dry_run"]}))
    elif options["dry_run"]:
        command.say(f"{bulk.matched:,} would be {done}")
    else:
        command.say(f"{bulk.done:,} {done}")
        for one in bulk.others[:MOST_SHOWN]:
            command.say(f"{one.dead_letter_id} was not: {one.because}")
        if len(bulk.others) > MOST_SHOWN:
            more = len(bulk.others) - MOST_SHOWN
            command.say(f"and {more:,} more were not (--json tells all)")
    return ExitCode.NO if bulk.others else ExitCode.DONE


class Undo(Subcommand):
    name = "undo"
    summary = "Take requeues back whose jobs have not begun."
    description = """\
Take the requeue of dead letters back, by their ids, as long as the new job has not begun: it is
cancelled, and the dead letter is open as it was before. A job that has begun goes on: you are told
which it is.

--json writes one object, as `dead requeue` does; fate is under_way (it has begun), not_requeued or
closed."""
    examples = """\
  manage.py stoker dead undo 01a1fead-623a-79c2-8aa5-667b5b8d6a38 --because "the bank is not back"
  manage.py stoker dead list --state requeued"""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("ids", nargs="+", metavar="ID", help="Ids of dead letters.")
        parser.add_argument(
            "--by",
            metavar="NAME",
            help="Name recorded with the action. Default: the user who runs the command.",
        )
        parser.add_argument(
            "--because", default="", metavar="TEXT", help="Reason, recorded with the job."
        )
        add_backend(parser)
        parser.add_argument(
            "--json", action="store_true", help="Write one JSON object, as described above."
        )

    def run(self, options: dict[str, Any]) -> ExitCode:
        alias = within_deadlines(backend_settings(options["backend"])).alias
        letters = [dead_letters.get(one, backend=alias).letter for one in options["ids"]]
        common = {"by": options["by"] or user(), "because": options["because"], "backend": alias}
        answers = [dead_letters.undo_requeue(one.pk, **common) for one in letters]
        others = [one for one in answers if one.fate is not Fate.TAKEN_BACK]
        bulk = Bulk(len(answers), len(answers) - len(others), others)
        return say_bulk(self, bulk, "taken back", {**options, "dry_run": False})


class _Change(Subcommand):
    """Something done to some, by their ids or by filters."""

    done: str
    """How it is called when it is done."""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "ids", nargs="*", default=[], metavar="ID", help="Ids of dead letters, or filters."
        )
        add_filters(parser, state=False)
        parser.add_argument(
            "--all", action="store_true", help="All open dead letters, if no filter is given."
        )
        parser.add_argument(
            "--by",
            metavar="NAME",
            help="Name recorded with the action. Default: the user who runs the command.",
        )
        parser.add_argument(
            "--because", default="", metavar="TEXT", help="Reason, recorded with the action."
        )
        parser.add_argument(
            "--limit",
            type=positive,
            default=1000,
            metavar="N",
            help="Maximum number if filters are given, oldest first. Default: %(default)s.",
        )
        parser.add_argument(
            "--pause",
            type=positive_seconds,
            default=0.0,
            metavar="SECONDS",
            help="Between one and the next.",
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="Only count them; change nothing."
        )
        add_backend(parser)
        parser.add_argument(
            "--json", action="store_true", help="Write one JSON object, as described above."
        )

    def run(self, options: dict[str, Any]) -> ExitCode:
        backend = within_deadlines(backend_settings(options["backend"])).alias
        filters = filters_of(options)
        self._refuse_unclear(options, filters)
        common = {"backend": backend, "by": options["by"] or user(), "because": options["because"]}
        if options["ids"]:
            bulk = self._by_ids(options, common)
        else:
            with bar("dead letters"):
                bulk = self.many(
                    options,
                    limit=options["limit"],
                    pause_seconds=options["pause"],
                    dry_run=options["dry_run"],
                    **common,
                    **filters,
                )
        return say_bulk(self, bulk, self.done, options)

    @abstractmethod
    def one(self, dead_letter_id: str, options: dict[str, Any], **common: Any) -> Answer: ...

    @abstractmethod
    def many(self, options: dict[str, Any], **filters: Any) -> Bulk: ...

    def _refuse_unclear(self, options: dict[str, Any], filters: dict[str, Any]) -> None:
        ways = [bool(options["ids"]), bool(filters), options["all"]]
        if sum(ways) == 0:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in FILTERS)
            raise refuse(f"Say which: ids, filters ({names}), or --all.")
        if sum(ways) > 1:
            raise refuse("Give either ids, or filters, or --all.")

    def _by_ids(self, options: dict[str, Any], common: dict[str, Any]) -> Bulk:
        for one in options["ids"]:  # a mistyped one is told before anything is done
            dead_letters.get(one, backend=common["backend"])
        if options["dry_run"]:
            return Bulk(len(options["ids"]), 0)
        answers = [self.one(one, options, **common) for one in options["ids"]]
        others = [one for one in answers if one.fate not in (Fate.REQUEUED, Fate.DISCARDED)]
        return Bulk(len(answers), len(answers) - len(others), others)


class RequeueLetters(_Change):
    name = "requeue"
    summary = "Send dead letters again."
    done = "requeued"
    description = """\
Send dead letters again, by their ids, or all open ones that the filters find. Each becomes a new
job with the same arguments and options, in the place in line of the one that failed. It is resolved
when that job succeeds; if it fails again, the same dead letter says so. There are never two jobs of
one: where one is there already, or a newer one of the same unique key, you are told which.

--json writes one object: matched, done, dry_run, others[] {id, fate, job_id or null, because}; fate
is newer, under_way, closed, gone or refused."""
    examples = """\
  manage.py stoker dead requeue 01a1fead-623a-79c2-8aa5-667b5b8d6a38 --because "the bank is back"
  manage.py stoker dead requeue --task shop.tasks.charge --failed-after 2h --dry-run
  manage.py stoker dead requeue --all --pause 0.1
  manage.py stoker dead requeue 01a1fead-623a-79c2-8aa5-667b5b8d6a38 --kwargs '{"order_id": 7}'"""

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--args",
            dest="new_args",
            type=json_of(list),
            metavar="JSON",
            help="Of one dead letter: other arguments, as a JSON list.",
        )
        parser.add_argument(
            "--kwargs",
            dest="new_kwargs",
            type=json_of(dict),
            metavar="JSON",
            help="Of one dead letter: other arguments by name, as a JSON object.",
        )
        parser.add_argument(
            "--to-queue", metavar="NAME", help="Into this queue. Default: the queue it was in."
        )
        parser.add_argument(
            "--run-after",
            type=moment,
            metavar="WHEN",
            help="Not before: so long from now, as 90 or 2h, or an ISO 8601 moment. Default: at "
            "once.",
        )

    def one(self, dead_letter_id: str, options: dict[str, Any], **common: Any) -> Answer:
        return dead_letters.requeue(
            dead_letter_id,
            args=options["new_args"],
            kwargs=options["new_kwargs"],
            to_queue=options["to_queue"],
            run_after=options["run_after"],
            **common,
        )

    def many(self, options: dict[str, Any], **filters: Any) -> Bulk:
        return dead_letters.requeue_many(
            to_queue=options["to_queue"], run_after=options["run_after"], **filters
        )

    def _refuse_unclear(self, options: dict[str, Any], filters: dict[str, Any]) -> None:
        super()._refuse_unclear(options, filters)
        is_changed = options["new_args"] is not None or options["new_kwargs"] is not None
        if is_changed and len(options["ids"]) != 1:
            raise refuse("--args and --kwargs are for one dead letter: give one ID with them.")


class Discard(_Change):
    name = "discard"
    summary = "Close dead letters: nothing is to be done about them."
    done = "discarded"
    description = """\
Close dead letters, by their ids, or all open ones that the filters find: nothing is to be done
about them. They stay to be looked up until they are purged. A sequence of jobs that one of them
halts goes on.

--json writes one object, as `dead requeue` does."""
    examples = """\
  manage.py stoker dead discard 01a1fead-623a-79c2-8aa5-667b5b8d6a38 --because "paid in cash"
  manage.py stoker dead discard --reason expired --failed-before 7d"""

    def one(self, dead_letter_id: str, options: dict[str, Any], **common: Any) -> Answer:
        letter = dead_letters.get(dead_letter_id, backend=common["backend"]).letter
        if dead_letters.discard(letter.pk, **common):
            return Answer(letter.pk, Fate.DISCARDED)
        if letter.successor_id is not None:
            sentence = f"job {letter.successor_id} carries it on: cancel that first"
            return Answer(letter.pk, Fate.UNDER_WAY, letter.successor_id, sentence)
        return Answer(letter.pk, Fate.CLOSED, None, f"it is {letter.state}")

    def many(self, options: dict[str, Any], **filters: Any) -> Bulk:
        return dead_letters.discard_many(**filters)


class Purge(Subcommand):
    name = "purge"
    summary = "Delete old dead letters for good."
    description = """\
Delete dead letters that were closed so long ago, with their history. With --state open: those about
which nobody has done anything since they failed so long ago. One that a job carries on stays.

--json writes one object: matched, done, dry_run."""
    examples = """\
  manage.py stoker dead purge --older-than 30d --dry-run
  manage.py stoker dead purge --older-than 90d --state all"""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--older-than",
            type=duration,
            required=True,
            metavar="DURATION",
            help="Since so long, as 30d or 12h.",
        )
        parser.add_argument(
            "--state",
            default="closed",
            choices=("closed", "resolved", "discarded", "open", "all"),
            metavar="STATE",
            help="closed (resolved and discarded), resolved, discarded, open, all. "
            "Default: %(default)s.",
        )
        parser.add_argument(
            "--limit",
            type=positive,
            default=100_000,
            metavar="N",
            help="Maximum number. Default: %(default)s.",
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="Only count them; change nothing."
        )
        add_backend(parser)
        parser.add_argument(
            "--json", action="store_true", help="Write one JSON object, as described above."
        )

    def run(self, options: dict[str, Any]) -> ExitCode:
        backend = within_deadlines(backend_settings(options["backend"])).alias
        with bar("dead letters"):
            bulk = dead_letters.purge(
                options["older_than"],
                state=options["state"],
                limit=options["limit"],
                dry_run=options["dry_run"],
                backend=backend,
            )
        if options["json"]:
            shape = {"matched": bulk.matched, "done": bulk.done, "dry_run": options["dry_run"]}
            self.say(as_json(shape))
        elif options["dry_run"]:
            self.say(f"{bulk.matched:,} would be purged")
        else:
            self.say(f"{bulk.done:,} purged")
        return ExitCode.DONE
