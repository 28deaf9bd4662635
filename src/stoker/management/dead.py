"""``manage.py stoker dead``: looks at dead letters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandParser

from stoker.dead_letters import service as dead_letters
from stoker.dead_letters.service import Story
from stoker.models import Attempt, DeadLetter, Requeue

from .dead_changes import Discard, Purge, RequeueLetters, Undo
from .enqueue import written
from .labels import (
    add_filters,
    as_plain,
    filters_of,
    first_line,
    letter_as_plain,
    positive,
    shown_moment,
)
from .subcommand import (
    ExitCode,
    Subcommand,
    SubcommandGroup,
    add_backend,
    as_json,
    backend_settings,
    refuse,
    within_deadlines,
)


class ListLetters(Subcommand):
    name = "list"
    summary = "List dead letters, the newest first."
    description = """\
List dead letters, the newest first: those that are open, and those that were sent again and whose
job has not ended. Each has its id, when it failed last, how often in all, its task, and why.

--json writes one object: letters[] (all that is known of each but for package and traceback),
count, next (for --after; null on the last page)."""
    examples = """\
  manage.py stoker dead list
  manage.py stoker dead list --task shop.tasks.charge --failed-after 2h
  manage.py stoker dead list --text "connection refused" --json | jq '.letters[].id'"""

    def add_arguments(self, parser: CommandParser) -> None:
        add_filters(parser)
        parser.add_argument(
            "--limit",
            type=positive,
            default=20,
            metavar="N",
            help="Maximum number to show. Default: %(default)s.",
        )
        parser.add_argument(
            "--after",
            metavar="MARK",
            help="Continue after a page: each page prints the value for the next one.",
        )
        add_backend(parser)
        parser.add_argument(
            "--json", action="store_true", help="Write one JSON object, as described above."
        )

    def run(self, options: dict[str, Any]) -> ExitCode:
        alias = within_deadlines(backend_settings(options["backend"])).alias
        filters = filters_of(options)
        try:
            page = dead_letters.find(
                limit=options["limit"], after=options["after"], backend=alias, **filters
            )
        except ValueError as error:
            raise refuse(f"--after: {error}.") from error
        number = dead_letters.count(backend=alias, **filters)
        if options["json"]:
            letters = [letter_as_plain(letter) for letter in page.letters]
            self.say(as_json({"letters": letters, "count": number, "next": page.next}))
            return ExitCode.DONE
        for letter in page.letters:
            self._say_letter(letter)
        self.say(f"{len(page.letters)} of {number:,} dead letters" if number else "none")
        if page.next:
            self.say(f"The next page: --after '{page.next}'")
        return ExitCode.DONE

    def _say_letter(self, letter: DeadLetter) -> None:
        heading = self.command.style.MIGRATE_HEADING
        times = f", {letter.failure_count} times" if letter.failure_count > 1 else ""
        state = "" if letter.state == DeadLetter.State.OPEN else f" [{letter.state}]"
        self.say(
            f"{heading(str(letter.pk))}  {shown_moment(letter.failed_at)}  "
            f"{letter.task or 'unknown task'}{state}"
        )
        what = first_line(f"{letter.exception_class.rpartition('.')[2]}: {letter.message}")
        self.say(f"  {letter.reason}{times}: {what}")


class Show(Subcommand):
    name = "show"
    summary = "Show one dead letter with the error of every attempt."
    description = """\
Show all that is known of one dead letter: its job, arguments, error and traceback, every attempt of
every job that it is of, and who has sent it again, when and why.

--json writes one object: letter (as `dead list`, with traceback), args, kwargs (each value as text;
null if the package cannot be opened), attempts[], requeues[]."""
    examples = """\
  manage.py stoker dead show 01a1fead-623a-79c2-8aa5-667b5b8d6a38
  manage.py stoker dead show 01a1fead-623a-79c2-8aa5-667b5b8d6a38 --all-tracebacks"""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "id", metavar="ID", help="The id of the dead letter, or of the job that failed last."
        )
        parser.add_argument(
            "--all-tracebacks",
            action="store_true",
            help="The traceback of every attempt, not that of the last alone.",
        )
        add_backend(parser)
        parser.add_argument(
            "--json", action="store_true", help="Write one JSON object, as described above."
        )

    def run(self, options: dict[str, Any]) -> ExitCode:
        alias = within_deadlines(backend_settings(options["backend"])).alias
        story = dead_letters.get(options["id"], backend=alias)
        if options["json"]:
            self.say(as_json(_as_plain(story)))
            return ExitCode.DONE
        for line in _lines(story):
            self.say(line)
        self.say(self.command.style.MIGRATE_HEADING("Attempts"))
        for attempt in story.attempts:
            self.say(f"  {_attempt_line(attempt)}")
            if options["all_tracebacks"] and attempt.traceback:
                self.say(attempt.traceback.rstrip())
        if not options["all_tracebacks"]:
            self.say(self.command.style.MIGRATE_HEADING("The last traceback"))
            self.say(story.letter.traceback.rstrip() or "  none")
        return ExitCode.DONE


def _as_plain(story: Story) -> dict[str, Any]:
    names = ("job_id", "number", "kind", "worker_id", "started_at", "finished_at", "message")
    more = ("exception_class", "traceback", "exit_code", "signal")
    history = ("job_id", "from_job_id", "kind", "by", "because", "requeued_at")
    return {
        "letter": {**letter_as_plain(story.letter), "traceback": story.letter.traceback},
        "args": None if story.args is None else [written(value) for value in story.args],
        "kwargs": None
        if story.kwargs is None
        else {name: written(value) for name, value in story.kwargs.items()},
        "attempts": [
            {name: as_plain(getattr(one, name)) for name in (*names, *more)}
            for one in story.attempts
        ],
        "requeues": [
            {name: as_plain(getattr(one, name)) for name in history} for one in story.requeues
        ],
    }


def _lines(story: Story) -> Iterator[str]:
    letter = story.letter
    yield f"dead letter   {letter.pk} ({letter.state})"
    yield f"task          {letter.task or 'unknown'}, queue {letter.queue}"
    yield f"arguments     {_arguments(story)}"
    if letter.key:
        yield f"key           {letter.key}"
    yield f"why           {letter.reason}: {letter.exception_class}"
    yield f"              {first_line(letter.message, 300)}"
    yield f"fault         {letter.fingerprint}"
    since = f", since {shown_moment(letter.first_failed_at)}" if letter.failure_count > 1 else ""
    times = "once" if letter.failure_count == 1 else f"{letter.failure_count} times"
    yield f"failed        {shown_moment(letter.failed_at)}, {times}{since}"
    yield f"job           {letter.job_id}, {letter.attempts} attempts"
    for requeue in story.requeues:
        yield f"sent again    {_requeue_line(requeue)}"
    if letter.closed_at is not None:
        who = f" by {letter.closed_by}" if letter.closed_by else ""
        yield f"{letter.state:<13} {shown_moment(letter.closed_at)}{who}: {letter.closed_because}"
    yield ""


def _arguments(story: Story) -> str:
    if story.args is None or story.kwargs is None:
        return "the package cannot be opened"
    named = [f"{name}={value!r}" for name, value in story.kwargs.items()]
    return first_line(", ".join([*map(repr, story.args), *named]) or "none", 300)


def _requeue_line(requeue: Requeue) -> str:
    who = {
        Requeue.By.PERSON: requeue.by or "by hand",
        Requeue.By.POLICY: "by itself",
        Requeue.By.SUCCESSOR: "a newer job of its key",
    }[Requeue.By(requeue.kind)]
    because = f": {requeue.because}" if requeue.because else ""
    return f"{shown_moment(requeue.requeued_at)}, {who}, as job {requeue.job_id}{because}"


def _attempt_line(attempt: Attempt) -> str:
    what = first_line(f"{attempt.exception_class}: {attempt.message}", 200)
    return (
        f"{shown_moment(attempt.finished_at)}  job {attempt.job_id}, attempt {attempt.number}, "
        f"{attempt.kind}: {what}"
    )


class StatsOfLetters(Subcommand):
    name = "stats"
    summary = "Count dead letters, by fault."
    description = """\
Count dead letters and show the most frequent faults: the same error raised at the same place has
the same fingerprint, whatever its message.

--json writes one object: total, tasks, queues, failures, requeues, oldest, newest, faults[]
{fingerprint, task, reason, exception_class, number, failures, first_failed_at, failed_at}."""
    examples = """\
  manage.py stoker dead stats
  manage.py stoker dead stats --failed-after 1d --groups 3"""

    def add_arguments(self, parser: CommandParser) -> None:
        add_filters(parser)
        parser.add_argument(
            "--groups",
            type=positive,
            default=10,
            metavar="N",
            help="Maximum number of faults to show. Default: %(default)s.",
        )
        add_backend(parser)
        parser.add_argument(
            "--json", action="store_true", help="Write one JSON object, as described above."
        )

    def run(self, options: dict[str, Any]) -> ExitCode:
        alias = within_deadlines(backend_settings(options["backend"])).alias
        seen = dead_letters.stats(groups=options["groups"], backend=alias, **filters_of(options))
        if options["json"]:
            self.say(as_json(asdict(seen)))
            return ExitCode.DONE
        self.say(
            f"{seen.total:,} dead letters of {seen.tasks} tasks in {seen.queues} queues; they have "
            f"failed {seen.failures:,} times, and were sent again {seen.requeues:,} times"
        )
        for fault in seen.faults:
            self.say(f"{fault.number:>7,}  {fault.task or 'unknown task'}: {fault.exception_class}")
            self.say(
                f"         {fault.reason}, last {shown_moment(fault.failed_at)}, "
                f"fingerprint {fault.fingerprint}"
            )
        return ExitCode.DONE


class Dead(SubcommandGroup):
    name = "dead"
    summary = "Find dead letters, requeue or discard them."
    description = """\
A dead letter is what is kept of a job that used up its tries: one for each logical job, however
often it is sent again. Find out what happened, mend it, and send it again (requeue), or say that
nothing is to be done (discard)."""
    examples = """\
  manage.py stoker dead list
  manage.py stoker dead requeue --task shop.tasks.charge --dry-run"""
    parts = (ListLetters, Show, StatsOfLetters, RequeueLetters, Undo, Discard, Purge)
