"""``manage.py stoker enqueue``: enqueue a task, given its name and arguments."""

from __future__ import annotations

from typing import Any

from django.utils import timezone

from stoker.compat import InvalidTask
from stoker.exceptions import DuplicateJob, JobFailed, ResultTimeout
from stoker.tasks.registry import named_task
from stoker.values.text import first_line_of

from .arguments import json_of, json_or_text, moment, positive_seconds, written
from .subcommand import (
    ExitCode,
    Subcommand,
    backend_settings,
    option,
    refuse,
    within_deadlines,
)


class Enqueue(Subcommand):
    """Enqueue a job, and optionally wait for its result.

    Enqueue one job of a task and write its id. Arguments are read as JSON, and as text if they are
    not JSON: 42 is a number, true is a boolean, '"42"' and hello are texts, '{"id": 7}' is a dict.
    After --, words that begin with a dash are arguments, too.

    With --wait, wait until the job has ended and write the return value of the task: as JSON if
    possible, else as Python writes it. The id is then written to standard error.

    Examples:
      manage.py stoker enqueue shop.tasks.send_welcome 7
      manage.py stoker enqueue shop.tasks.send_welcome --kwargs '{"user_id": 7}' --queue mail
      manage.py stoker enqueue shop.tasks.clean_up --run-after 3600
      manage.py stoker enqueue shop.tasks.count --wait 30
    """

    name = "enqueue"
    options = (
        option(
            "task",
            metavar="TASK",
            help="The task: module and function, such as shop.tasks.send_welcome.",
        ),
        option("arguments", nargs="*", default=[], metavar="ARG", help="Arguments for the task."),
        option(
            "--args",
            dest="all_arguments",  # Django reserves `args`
            type=json_of(list),
            metavar="JSON",
            help="All arguments as a JSON list, instead of ARG.",
        ),
        option(
            "--kwargs",
            type=json_of(dict),
            default={},
            metavar="JSON",
            help="Arguments by name, as a JSON object.",
        ),
        option(
            "--backend",
            metavar="ALIAS",
            help="The backend, by its name under TASKS. Default: the task's.",
        ),
        option("--queue", metavar="NAME", help="The queue. Default: the task's."),
        option(
            "--priority",
            type=int,
            metavar="N",
            help="From -100 to 100, higher runs first. Default: the task's.",
        ),
        option(
            "--run-after",
            type=moment,
            metavar="WHEN",
            help="Earliest start: a duration from now, such as 90 or 2h, or an ISO 8601 time, such "
            "as 2030-01-31T06:00+01:00. A moment in the past means now.",
        ),
        option(
            "--wait",
            nargs="?",
            type=positive_seconds,
            const=float("inf"),
            metavar="SECONDS",
            help="Wait until the job has ended, at most this long.",
        ),
    )

    def run(self, options: dict[str, Any]) -> ExitCode:
        result = self._enqueue(options)
        if getattr(result, "was_duplicate", False) and options["verbosity"]:
            self.command.stderr.write(
                "No job was enqueued: there is one with the same unique key already.",
                lambda text: text,
            )
        if options["wait"] is None:
            self.say(result.id)
            return ExitCode.DONE
        if options["verbosity"]:
            self.command.stderr.write(f"Job {result.id}", lambda text: text)
        limit = None if options["wait"] == float("inf") else options["wait"]
        try:
            value = result.wait(limit)
        except ResultTimeout as error:
            raise refuse(first_line_of(error), ExitCode.NOT_YET) from error
        except JobFailed as error:
            raise refuse(first_line_of(error), ExitCode.NO) from error
        self.say(written(value))
        return ExitCode.DONE

    def _enqueue(self, options: dict[str, Any]) -> Any:
        if options["all_arguments"] is not None and options["arguments"]:
            raise refuse("Give the arguments either one by one or by --args, not both.")
        task = varied(named_task(options["task"]), options)
        within_deadlines(backend_settings(task.backend))
        args = options["all_arguments"]
        if args is None:
            args = [json_or_text(text) for text in options["arguments"]]
        try:
            return task.enqueue(*args, **options["kwargs"])
        except DuplicateJob as error:
            raise refuse(first_line_of(error), ExitCode.NO) from error
        except (InvalidTask, TypeError, ValueError) as error:
            raise refuse(first_line_of(error)) from error


def varied(task: Any, options: dict[str, Any]) -> Any:
    """Return the task with the options of the command line."""
    start = options["run_after"]
    changes = {
        "backend": options["backend"],
        "queue_name": options["queue"],
        "priority": options["priority"],
        "run_after": start if start is None or start > timezone.now() else 0,
    }
    try:
        return task.using(**{name: value for name, value in changes.items() if value is not None})
    except (InvalidTask, TypeError, ValueError) as error:
        raise refuse(first_line_of(error)) from error
