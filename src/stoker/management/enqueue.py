"""``manage.py stoker enqueue``: makes a job of a task's name and arguments."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings as django_settings
from django.core.management.base import CommandParser
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from stoker.compat import InvalidTask
from stoker.exceptions import DuplicateJob, JobFailed, ResultTimeout
from stoker.tasks.registry import find_task
from stoker.values.durations import duration_seconds

from .subcommand import (
    ExitCode,
    Subcommand,
    backend_settings,
    one_sentence,
    positive_seconds,
    refuse,
    within_deadlines,
)


class Enqueue(Subcommand):
    name = "enqueue"
    summary = "Enqueue a job, and wait for it if asked to."
    description = """\
Enqueue one job of a task and write its id. An argument that is JSON is taken as such, any other as
text: 42 is a number, true a truth value, '"42"' and hello are texts, '{"id": 7}' is a dict.
After --, also what begins with a dash is an argument.

With --wait, wait for the job to end and write what the task returned: as JSON where it can be, else
as Python would. The id is then written to standard error."""
    examples = """\
  manage.py stoker enqueue shop.tasks.send_welcome 7
  manage.py stoker enqueue shop.tasks.send_welcome --kwargs '{"user_id": 7}' --queue mail
  manage.py stoker enqueue shop.tasks.clean_up --run-after 3600
  manage.py stoker enqueue shop.tasks.count --wait 30"""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "task",
            metavar="TASK",
            help="The task: module and function, as shop.tasks.send_welcome.",
        )
        parser.add_argument(
            "arguments", nargs="*", default=[], metavar="ARG", help="Arguments for the task."
        )
        parser.add_argument(
            "--args",
            dest="all_arguments",  # Django keeps `args` to itself
            type=json_of(list),
            metavar="JSON",
            help="All arguments as a JSON list, instead of ARG.",
        )
        parser.add_argument(
            "--kwargs",
            type=json_of(dict),
            default={},
            metavar="JSON",
            help="Arguments by name, as a JSON object.",
        )
        parser.add_argument(
            "--backend",
            metavar="ALIAS",
            help="The backend, by its name under TASKS. Default: the task's.",
        )
        parser.add_argument("--queue", metavar="NAME", help="The queue. Default: the task's.")
        parser.add_argument(
            "--priority",
            type=int,
            metavar="N",
            help="From -100 to 100, higher runs first. Default: the task's.",
        )
        parser.add_argument(
            "--run-after",
            type=moment,
            metavar="WHEN",
            help="Not before: so long from now, as 90 or 2h, or an ISO 8601 moment, as "
            "2030-01-31T06:00+01:00.",
        )
        parser.add_argument(
            "--wait",
            nargs="?",
            type=positive_seconds,
            const=float("inf"),
            metavar="SECONDS",
            help="Wait for the end of the job, at most so long.",
        )

    def run(self, options: dict[str, Any]) -> ExitCode:
        result = self._enqueue(options)
        if getattr(result, "was_duplicate", False) and options["verbosity"]:
            self.command.stderr.write(
                "No job was made: there is one of the same unique key already.", lambda text: text
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
            raise refuse(one_sentence(error), ExitCode.NOT_YET) from error
        except JobFailed as error:
            raise refuse(one_sentence(error), ExitCode.NO) from error
        self.say(written(value))
        return ExitCode.DONE

    def _enqueue(self, options: dict[str, Any]) -> Any:
        if options["all_arguments"] is not None and options["arguments"]:
            raise refuse("Give the arguments either one by one or by --args, not both.")
        task = varied(find_task(options["task"]), options)
        within_deadlines(backend_settings(task.backend))
        args = (
            options["arguments"] if options["all_arguments"] is None else options["all_arguments"]
        )
        if options["all_arguments"] is None:
            args = [json_or_text(text) for text in args]
        try:
            return task.enqueue(*args, **options["kwargs"])
        except DuplicateJob as error:
            raise refuse(one_sentence(error), ExitCode.NO) from error
        except (InvalidTask, TypeError, ValueError) as error:
            raise refuse(one_sentence(error)) from error


def varied(task: Any, options: dict[str, Any]) -> Any:
    """The task with what the command line says differently."""
    changes = {
        "backend": options["backend"],
        "queue_name": options["queue"],
        "priority": options["priority"],
        "run_after": options["run_after"],
    }
    try:
        return task.using(**{name: value for name, value in changes.items() if value is not None})
    except (InvalidTask, TypeError, ValueError) as error:
        raise refuse(one_sentence(error)) from error


def json_or_text(text: str) -> Any:
    """What the text spells in JSON, else the text."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except ValueError:
        return text


JSON_KINDS: dict[type[Any], str] = {
    list: "a list, as '[7, \"x\"]'",
    dict: "an object, as '{\"user_id\": 7}'",
}


def json_of(kind: type[Any]) -> Callable[[str], Any]:
    """An argparse type: JSON of that kind."""

    def checked(text: str) -> Any:
        try:
            value = json.loads(text, parse_constant=_no_constant)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} is not JSON ({error})") from None
        if not isinstance(value, kind):
            raise argparse.ArgumentTypeError(f"{text!r} is not {JSON_KINDS[kind]}")
        return value

    return checked


def moment(text: str) -> datetime:
    """An argparse type: so long from now, or ISO 8601; without a zone, the project's."""
    try:
        return timezone.now() + timedelta(seconds=duration_seconds(text))
    except (ValueError, OverflowError):
        return iso_moment(text, "a duration, as 90, 2h or 7d,")


def iso_moment(text: str, otherwise: str) -> datetime:
    """A moment in ISO 8601; without a zone, of the project's.

    Args:
        otherwise: what the text might have been instead.
    """
    try:
        parsed = parse_datetime(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no moment: {error}") from None
    if parsed is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither {otherwise} nor a moment, as in 2030-01-31T06:00"
        )
    if timezone.is_naive(parsed) == django_settings.USE_TZ:
        return (
            timezone.make_aware(parsed) if django_settings.USE_TZ else timezone.make_naive(parsed)
        )
    return parsed


def written(value: Any) -> str:
    """JSON where it can be, else as Python shows it."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError):
        return repr(value)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
