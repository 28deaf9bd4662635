"""``manage.py stoker dead``: list and show dead letters; requeue, discard and purge them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, ClassVar
from uuid import UUID

from stoker.dead_letters import service as dead_letters
from stoker.dead_letters.closing import Bulk
from stoker.models import DeadLetter
from stoker.operations import dead_letters as operations
from stoker.operations.details import opened_call
from stoker.operations.operation import Operation

from .arguments import (
    call_as_plain,
    duration,
    json_of,
    moment,
    past_moment,
    positive,
    positive_seconds,
)
from .bar import bar
from .details import end_of_list, letter_lines, row_lines, stats_lines
from .subcommand import (
    BACKEND,
    BECAUSE,
    BY,
    CHANGE_OPTIONS,
    DRY_RUN,
    JSON,
    PAGE_OPTIONS,
    QUEUE,
    TASK,
    ExitCode,
    Option,
    Subcommand,
    SubcommandGroup,
    limit,
    option,
    refuse,
)

MOST_SHOWN = 20
COLUMN_FILTERS = (
    TASK,
    QUEUE,
    option("--key", default="", metavar="TEXT", help="Only unique keys that contain this text."),
    option(
        "--reason",
        default="",
        choices=DeadLetter.Reason.values,
        metavar="REASON",
        help="Only this reason: error, timeout, crash, expired, unreadable or unknown_task.",
    ),
    option("--fingerprint", default="", metavar="HEX", help="Only this fault (see `dead stats`)."),
    option(
        "--failed-after",
        type=past_moment,
        metavar="WHEN",
        help="Last failed after this time: an age such as 2h or 7d, or an ISO 8601 time.",
    ),
    option("--failed-before", type=past_moment, metavar="WHEN", help="Last failed before WHEN."),
)
TEXT_IN_LIST = option(
    "--text",
    default="",
    metavar="TEXT",
    help="Only with this text in the error, the traceback, the task, the key or an argument: "
    "order_id=7 for one argument.",
)
TEXT = option(
    "--text",
    default="",
    metavar="TEXT",
    help="Only with this text in the error, the traceback, the task or the key. Arguments are not "
    "searched, unlike in `dead list`.",
)
FILTERS = (*COLUMN_FILTERS, TEXT)
STATE = option(
    "--state",
    default="unclosed",
    choices=("open", "requeued", "resolved", "discarded", "unclosed", "closed", "all"),
    metavar="STATE",
    help="open, requeued, resolved, discarded; unclosed (open and requeued), closed "
    "(resolved and discarded), all. Default: %(default)s.",
)
NAMES = [one.flags[0].removeprefix("--").replace("-", "_") for one in FILTERS]
ALL_TRACEBACKS = option(
    "--all-tracebacks", action="store_true", help="The traceback of every attempt."
)
IDS = option(
    "ids", nargs="*", default=[], metavar="ID", help="Ids of dead letters, instead of filters."
)


def filters_of(options: dict[str, Any]) -> dict[str, Any]:
    """Return the given filters."""
    return {name: options[name] for name in (*NAMES, "state") if options.get(name)}


class ListLetters(Subcommand):
    """List dead letters, the newest first.

    List open and requeued dead letters: id, time and number of failures, task, arguments or label,
    error.

    --json writes one object: letters[] (all fields of each except package and traceback; label,
    args, kwargs: each argument as text; null if the package is large or cannot be opened), count
    (of all that match; null with --text), next (for --after; null on the last page).

    Examples:
      manage.py stoker dead list
      manage.py stoker dead list --task shop.tasks.charge --failed-after 2h
      manage.py stoker dead list --text "connection refused" --json | jq '.letters[].id'
    """

    name = "list"
    options = (*COLUMN_FILTERS, TEXT_IN_LIST, STATE, *PAGE_OPTIONS)

    def run(self, options: dict[str, Any]) -> ExitCode:
        settings = self.settings(options)
        alias, filters = settings.alias, filters_of(options)
        most, after = options["limit"], options["after"]
        page = dead_letters.find(limit=most, after=after, backend=alias, **filters)
        # Only the pages search the arguments, which are inside packages, for a text.
        is_counted = "text" not in filters
        number = dead_letters.count(backend=alias, **filters) if is_counted else None
        rows = [(one, operations.call_in_list(settings, one)) for one in page.letters]
        letters = [
            {**operations.columns(letter, operations.LETTER), **call_as_plain(call)}
            for letter, call in rows
        ]
        lines = [line for row in rows for line in row_lines(*row)]
        lines.append(end_of_list(page, number))
        lines += [f"The next page: --after '{page.next}'"] if page.next else []
        self.answer(options, {"letters": letters, "count": number, "next": page.next}, lines)
        return ExitCode.DONE


class ShowLetter(Subcommand):
    """Show one dead letter with the errors of its attempts.

    Show one dead letter: its job, arguments, error, the newest 100 attempts, and who requeued it
    and why (the newest 100 requeues).

    --json writes one object: letter (as `dead list`, with traceback), args, kwargs (each value as
    text; null if the package cannot be opened), attempts[], requeues[], has_more (there are older
    ones).

    Examples:
      manage.py stoker dead show 01a1fead-623a-79c2-8aa5-667b5b8d6a38
      manage.py stoker dead show 01a1fead-623a-79c2-8aa5-667b5b8d6a38 --all-tracebacks
    """

    name = "show"
    options = (
        option(
            "id", metavar="ID", help="The id of the dead letter, or of the job that failed last."
        ),
        ALL_TRACEBACKS,
        BACKEND,
        JSON,
    )

    def run(self, options: dict[str, Any]) -> ExitCode:
        settings = self.settings(options)
        story = dead_letters.get(options["id"], backend=settings.alias)
        call = opened_call(settings, bytes(story.letter.package))
        letter = operations.columns(story.letter, (*operations.LETTER, "traceback"))
        plain = {
            "letter": letter,
            **call_as_plain(call),
            "attempts": [operations.columns(one, operations.ATTEMPT) for one in story.attempts],
            "requeues": [operations.columns(one, operations.REQUEUED) for one in story.requeues],
            "has_more": story.has_more,
        }
        lines = letter_lines(story, call, all_tracebacks=options["all_tracebacks"])
        self.answer(options, plain, lines)
        return ExitCode.DONE


class StatsOfLetters(Subcommand):
    """Count dead letters, by fault.

    Count dead letters and show the most frequent faults: the same error raised at the same place
    has the same fingerprint, whatever its message.

    --json writes one object: total, tasks, queues, failures, requeues, oldest, newest, faults[]
    {fingerprint, task, reason, exception_class, number, failures, first_failed_at, failed_at}.

    Examples:
      manage.py stoker dead stats
      manage.py stoker dead stats --failed-after 1d --groups 3
    """

    name = "stats"
    options = (
        *FILTERS,
        STATE,
        option(
            "--groups",
            type=positive,
            default=10,
            metavar="N",
            help="Maximum number of faults to show. Default: %(default)s.",
        ),
        BACKEND,
        JSON,
    )

    def run(self, options: dict[str, Any]) -> ExitCode:
        alias = self.settings(options).alias
        seen = dead_letters.stats(groups=options["groups"], backend=alias, **filters_of(options))
        self.answer(options, asdict(seen), stats_lines(seen))
        return ExitCode.DONE


class _ChangeLetters(Subcommand):
    operation: ClassVar[Operation]

    def tell(
        self, bulk: Bulk, options: dict[str, Any], jobs: Sequence[tuple[UUID, UUID | None]] = ()
    ) -> ExitCode:
        """Write the number of changed dead letters, why the others were not changed, and the new
        job of each requeued one."""
        names = ("job_id", "because")
        others = [
            {"id": one.dead_letter_id, "fate": one.fate.value, **operations.columns(one, names)}
            for one in bulk.others
        ]
        dry_run = options.get("dry_run", False)
        plain = {"matched": bulk.matched, "done": bulk.done, "others": others, "dry_run": dry_run}
        plain |= {"jobs": [{"id": one, "job_id": job_id} for one, job_id in jobs]} if jobs else {}
        news = [f"{one} continues as job {job_id}" for one, job_id in jobs]
        self.answer(options, plain, (*self._lines(bulk, dry_run=dry_run), *news))
        return ExitCode.NO if bulk.others else ExitCode.DONE

    def _lines(self, bulk: Bulk, *, dry_run: bool) -> Iterator[str]:
        if dry_run:
            yield f"{bulk.matched:,} would be {self.operation.done}"
            return
        yield f"{bulk.done:,} {self.operation.done}"
        for one in bulk.others[:MOST_SHOWN]:
            yield f"{one.dead_letter_id} was not {self.operation.done}: {one.because}"
        if len(bulk.others) > MOST_SHOWN:
            yield f"and {len(bulk.others) - MOST_SHOWN:,} more were not (--json lists all)"


class UndoRequeues(_ChangeLetters):
    """Undo requeues whose jobs have not begun.

    Undo the requeue of dead letters, by their ids. The new job is cancelled, and the dead letter is
    open as before. A job that has started continues, and the answer names it.

    --json writes one object, as `dead requeue` does; fate is under_way (it has begun), not_requeued
    or closed.

    Examples:
      manage.py stoker dead undo 01a1fead-623a-79c2-8aa5-667b5b8d6a38 --because "not yet"
    """

    name = "undo"
    operation = operations.UNDO
    options = (
        option("ids", nargs="+", metavar="ID", help="Ids of dead letters."),
        *CHANGE_OPTIONS,
    )

    def run(self, options: dict[str, Any]) -> ExitCode:
        operator = self.operator(options)
        letters = [dead_letters.letter_of(operator.settings, one) for one in options["ids"]]
        answers = [operations.UNDO.perform(operator, one.pk).value for one in letters]
        return self.tell(operations.bulk_of(answers), options)


class _ChangeSome(_ChangeLetters):
    options: ClassVar[tuple[Option, ...]] = (
        IDS,
        *FILTERS,
        option("--all", action="store_true", help="All open dead letters, if no filter is given."),
        BY,
        BECAUSE,
        limit(1000, "Maximum number if filters are given, oldest first."),
        option(
            "--pause",
            type=positive_seconds,
            default=0.0,
            metavar="SECONDS",
            help="Seconds between two dead letters.",
        ),
        DRY_RUN,
        BACKEND,
        JSON,
    )

    def run(self, options: dict[str, Any]) -> ExitCode:
        filters = filters_of(options)
        self.refuse_unclear(options, filters)
        operator = self.operator(options)
        if options["ids"]:
            for one in options["ids"]:  # a mistyped id stops the command before it changes anything
                dead_letters.letter_of(operator.settings, one)
            if options["dry_run"]:
                return self.tell(Bulk(len(options["ids"]), 0), options)
            changes, perform = self.changes(options), self.operation.perform
            answers = [perform(operator, one, **changes).value for one in options["ids"]]
            return self.tell(operations.bulk_of(answers), options, operations.new_jobs_of(answers))
        pace = {"pause_seconds": options["pause"], **{n: options[n] for n in ("limit", "dry_run")}}
        with bar("dead letters"):
            bulk = operations.perform_many(
                self.operation, operator, filters, self.many, options=options, **pace
            )
        return self.tell(bulk, options)

    def changes(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the options of the operation on one dead letter."""
        return {}

    @abstractmethod
    def many(self, options: dict[str, Any], **selection: Any) -> Bulk:
        """Perform the operation on all dead letters that match the filters."""

    def refuse_unclear(self, options: dict[str, Any], filters: dict[str, Any]) -> None:
        """Raise CommandError unless the dead letters are chosen in exactly one way: ids, filters or
        --all."""
        ways = sum([bool(options["ids"]), bool(filters), options["all"]])
        if ways == 0:
            names = ", ".join(one.flags[0] for one in FILTERS)
            raise refuse(f"Give ids, filters ({names}), or --all.")
        if ways > 1:
            raise refuse("Give either ids, or filters, or --all.")


class RequeueLetters(_ChangeSome):
    """Requeue dead letters.

    Requeue dead letters, by their ids, or all open ones that match the filters. Each becomes a new
    job with the same arguments and options, at the same place in the queue. It is resolved when
    that job succeeds, and open again if the job fails for good. A dead letter never has two
    jobs: the answer names the job that exists already, or a newer job of the same unique key.
    --text does not search arguments; `stoker bulk start requeue-letter --search` does.
    With --current-options it gets the max_attempts, max_crashes, timeout and hooks of the task;
    those that using() gave to this job are lost.

    --json writes one object: matched, done, dry_run, others[] {id, fate, job_id or null, because};
    fate is newer, under_way, closed, gone or refused. If requeued by id, also jobs[] {id, job_id}.

    Examples:
      manage.py stoker dead requeue 01a1fead-623a-79c2-8aa5-667b5b8d6a38 --because mended
      manage.py stoker dead requeue --task shop.tasks.charge --failed-after 2h --dry-run
      manage.py stoker dead requeue --all --pause 0.1
      manage.py stoker dead requeue 01a1fead-623a-79c2-8aa5-667b5b8d6a38 --kwargs '{"id": 7}'
    """

    name = "requeue"
    operation = operations.REQUEUE
    options = (
        *_ChangeSome.options,
        option(
            "--args",
            dest="new_args",
            type=json_of(list),
            metavar="JSON",
            help="Other arguments for one dead letter, as a JSON list.",
        ),
        option(
            "--kwargs",
            dest="new_kwargs",
            type=json_of(dict),
            metavar="JSON",
            help="Other arguments by name for one dead letter, as a JSON object.",
        ),
        option("--to-queue", metavar="NAME", help="The queue. Default: the queue it was in."),
        option("--current-options", action="store_true", help="Use the options of today's code."),
        option(
            "--run-after",
            type=moment,
            metavar="WHEN",
            help="Earliest start: a duration such as 2h, or an ISO 8601 time. Default: at once.",
        ),
    )

    def changes(self, options: dict[str, Any]) -> dict[str, Any]:
        return {"args": options["new_args"], "kwargs": options["new_kwargs"], **_placement(options)}

    def many(self, options: dict[str, Any], **selection: Any) -> Bulk:
        return dead_letters.requeue_many(**_placement(options), **selection)

    def refuse_unclear(self, options: dict[str, Any], filters: dict[str, Any]) -> None:
        super().refuse_unclear(options, filters)
        is_changed = options["new_args"] is not None or options["new_kwargs"] is not None
        if is_changed and len(options["ids"]) != 1:
            raise refuse("--args and --kwargs are for one dead letter: give one ID with them.")


def _placement(options: dict[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in ("to_queue", "run_after", "current_options")}


class DiscardLetters(_ChangeSome):
    """Close dead letters that need no further action.

    Close dead letters by their ids, or all open ones that match the filters. They are kept until
    they are purged. If one of them halts a sequence of jobs, the sequence continues.

    --json writes one object, as `dead requeue` does.

    Examples:
      manage.py stoker dead discard 01a1fead-623a-79c2-8aa5-667b5b8d6a38 --because "paid in cash"
      manage.py stoker dead discard --reason expired --failed-before 7d
    """

    name = "discard"
    operation = operations.DISCARD

    def many(self, options: dict[str, Any], **selection: Any) -> Bulk:
        return dead_letters.discard_many(**selection)


class PurgeLetters(Subcommand):
    """Delete old dead letters for good.

    Delete dead letters that were closed longer ago than --older-than, with their history. With
    --state open: those whose last failure is longer ago. Requeued dead letters are never deleted.

    --json writes one object: matched, done, dry_run.

    Examples:
      manage.py stoker dead purge --older-than 30d --dry-run
      manage.py stoker dead purge --older-than 90d --state all
    """

    name = "purge"
    options = (
        option(
            "--older-than",
            type=duration,
            required=True,
            metavar="DURATION",
            help="Minimum age, such as 30d or 12h.",
        ),
        option(
            "--state",
            default="closed",
            choices=("closed", "resolved", "discarded", "open", "all"),
            metavar="STATE",
            help="closed (resolved and discarded), resolved, discarded, open, all. "
            "Default: %(default)s.",
        ),
        limit(100_000, "Maximum number."),
        DRY_RUN,
        *CHANGE_OPTIONS,
    )

    def run(self, options: dict[str, Any]) -> ExitCode:
        terms = {name: options[name] for name in ("state", "limit", "dry_run")}
        with bar("dead letters"):
            bulk = operations.purge(self.operator(options), options["older_than"], **terms)
        plain = {"matched": bulk.matched, "done": bulk.done, "dry_run": terms["dry_run"]}
        line = f"{bulk.matched:,} would be purged" if terms["dry_run"] else f"{bulk.done:,} purged"
        self.answer(options, plain, [line])
        return ExitCode.DONE


class DeadLettersCommand(SubcommandGroup):
    """Find dead letters, requeue or discard them.

    A job that failed for good becomes a dead letter: one for each logical job, however
    often it is requeued. Fix the cause and requeue it, or discard it if it need not run again.

    Examples:
      manage.py stoker dead list
      manage.py stoker dead requeue --task shop.tasks.charge --dry-run
    """

    name = "dead"
    parts = (
        ListLetters,
        ShowLetter,
        StatsOfLetters,
        RequeueLetters,
        UndoRequeues,
        DiscardLetters,
        PurgeLetters,
    )
