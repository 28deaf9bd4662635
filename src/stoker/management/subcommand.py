"""The base class of the subcommands of ``manage.py stoker``, and the options they share."""

from __future__ import annotations

import argparse
import getpass
import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, is_dataclass
from enum import IntEnum
from typing import Any, ClassVar, NamedTuple
from uuid import UUID

from django.core.management.base import (
    BaseCommand,
    CommandError,
    CommandParser,
    DjangoHelpFormatter,
)

from stoker.backend import StokerBackend
from stoker.brokers.outage import do_without_broker
from stoker.compat import InvalidTaskBackend, task_backends
from stoker.conf import Settings
from stoker.exceptions import ConfigurationError
from stoker.operations.operation import Operator
from stoker.values.text import shown_json, shown_text

from .arguments import positive


class ExitCode(IntEnum):
    """The exit code of a command."""

    DONE = 0
    NO = 1
    REFUSED = 2
    NOT_YET = 3
    INTERRUPTED = 130
    NOBODY_READS = 141


MEANINGS = {
    ExitCode.DONE: "Done: the cluster has stopped as it was asked to, or is healthy; the job is "
    "enqueued, or ended well.",
    ExitCode.NO: "The answer is no: there is no healthy cluster (`health`), or none on this host "
    "(`memory`), the store has faults (`doctor`), the job will not run unless someone acts "
    "(`why`), or it failed (`enqueue --wait`). Or something was not changed: a job "
    "(`jobs cancel|run|change`), a dead letter (`dead requeue|undo|discard`), a workflow "
    "(`workflows cancel|retry|undo`), a bulk operation (`bulk pause|resume|stop|undo`) or one of "
    "its targets (`bulk start --wait`), or a cluster that is gone or stopping (`clusters`).",
    ExitCode.REFUSED: "It could not be done: options, settings or arguments are wrong, the "
    "job is unknown (`why`), tables are missing, or the store is unreachable.",
    ExitCode.NOT_YET: "The job has not ended within the SECONDS of `enqueue --wait`. It continues.",
    ExitCode.INTERRUPTED: "Ctrl-C (`run` then stops normally, and exits with 0).",
    ExitCode.NOBODY_READS: "The reader of the output has exited, as in `stoker info | head -1`.",
}
"""Exit code -> its meaning, for the reference documentation."""


class Option(NamedTuple):
    """An argument of a subcommand: the arguments of ``add_argument``."""

    flags: tuple[str, ...]
    terms: dict[str, Any]


class StyledLine(NamedTuple):
    """A line of the output whose beginning has a style."""

    style: str
    """The name of one of Django's styles."""
    beginning: str
    rest: str = ""


OutputLine = str | StyledLine


def heading(text: str, rest: str = "") -> StyledLine:
    """Return a line whose beginning is a heading."""
    return StyledLine("MIGRATE_HEADING", text, rest)


def option(*flags: str, **terms: Any) -> Option:
    """Declare an argument of a subcommand."""
    return Option(flags, terms)


class Subcommand(ABC):
    """A word after ``manage.py stoker``.

    The docstring of a subclass is its help: the first line in the list of subcommands, the rest
    above its options, and examples below them.
    """

    name: ClassVar[str]
    options: ClassVar[tuple[Option, ...]] = ()
    summary: ClassVar[str] = ""
    description: ClassVar[str] = ""
    examples: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        # Without docstrings (python -OO) there is no help, but the commands work.
        text, _, cls.examples = inspect.cleandoc(cls.__doc__ or "").partition("\n\nExamples:\n")
        cls.summary, _, rest = text.partition("\n")
        cls.description = rest.strip() or cls.summary

    def __init__(self, command: BaseCommand) -> None:
        self.command = command

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments to the parser."""
        for one in self.options:
            parser.add_argument(*one.flags, **one.terms)

    @abstractmethod
    def run(self, options: dict[str, Any]) -> ExitCode:
        """Run the subcommand, and write the answer.

        Raises:
            CommandError, StokerError: One sentence says why the command failed.
        """

    def settings(self, options: dict[str, Any]) -> Settings:
        """Return the settings of the chosen backend. From then on, calls to its store have
        deadlines."""
        return within_deadlines(backend_settings(options["backend"]))

    def operator(self, options: dict[str, Any]) -> Operator:
        """Return the operator: the user who runs the command, the backend and the reason."""
        by = options.get("by")
        because = options.get("because", "")
        return Operator(self.settings(options), user() if by is None else by, because)

    def say(self, line: OutputLine = "") -> None:
        """Write a line to standard output, without control characters."""
        if isinstance(line, StyledLine):
            beginning, rest = shown_text(line.beginning), shown_text(line.rest)
            style = getattr(self.command.style, line.style)
            self.command.stdout.write(style(beginning) + rest)
        else:
            self.command.stdout.write(shown_text(line))

    def answer(self, options: dict[str, Any], plain: Any, lines: Iterable[OutputLine]) -> None:
        """Write the answer: with ``--json`` the value ``plain`` as one JSON object, otherwise the
        lines."""
        for line in [as_json(plain)] if options["json"] else lines:
            self.say(line)

    @contextmanager
    def without_broker(self) -> Iterator[None]:
        """Within this block, read what the database knows if the broker does not answer, and say so
        on standard error."""
        with do_without_broker() as outage:
            yield
        if outage.sentence:
            self.remark(outage.sentence)

    def remark(self, text: str) -> None:
        """Write a line that is not part of the answer to standard error."""
        self.command.stderr.write(shown_text(text), self.command.style.WARNING)


class SubcommandGroup(Subcommand):
    """A subcommand that has subcommands of its own."""

    parts: ClassVar[tuple[type[Subcommand], ...]]

    def add_arguments(self, parser: CommandParser) -> None:
        self._parser = parser
        self._parts = add_subcommands(parser, self.command, self.parts, f"{self.name}_subcommand")

    def run(self, options: dict[str, Any]) -> ExitCode:
        word = options[f"{self.name}_subcommand"]
        if word is None:
            self._parser.print_help(self.command.stdout)
            return ExitCode.DONE
        return self._parts[word].run(options)


class HelpFormatter(DjangoHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Formats help with Django's order of the options, and leaves paragraphs as they are."""


class SubcommandParser(CommandParser):
    """A parser that takes options before, between and after the arguments."""

    _is_inside = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the arguments. Refuse unknown ones here, so that the error shows the usage of this
        subcommand."""
        # Before Python 3.12, the method below calls this one; and it takes no subcommands.
        if self._is_inside or self._subparsers is not None:
            return super().parse_known_args(args, namespace)
        self._is_inside = True
        try:
            known, unknown = self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_inside = False
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return known, unknown


def add_subcommands(
    parser: CommandParser,
    command: BaseCommand,
    kinds: Iterable[type[Subcommand]],
    dest: str = "subcommand",
) -> dict[str, Subcommand]:
    """Add the subcommands to a parser. Return them by name."""
    group = parser.add_subparsers(
        dest=dest, title="subcommands", metavar="SUBCOMMAND", parser_class=SubcommandParser
    )
    subcommands = {kind.name: kind(command) for kind in kinds}
    for name, subcommand in subcommands.items():
        own = group.add_parser(
            name,
            help=subcommand.summary,
            description=subcommand.description,
            epilog="examples:\n" + subcommand.examples.rstrip(),
            formatter_class=HelpFormatter,
        )
        subcommand.add_arguments(own)
        add_base_options(own)
    return subcommands


def add_base_options(parser: CommandParser) -> None:
    """Accept the options of every Django command after the subcommand, too.

    They have no defaults here, so that values given before the subcommand are kept.
    """
    hidden: dict[str, Any] = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
    parser.add_argument("-v", "--verbosity", type=int, choices=[0, 1, 2, 3], **hidden)
    for name in ("--settings", "--pythonpath"):
        parser.add_argument(name, **hidden)
    for name in ("--traceback", "--no-color", "--force-color"):
        parser.add_argument(name, action="store_true", **hidden)


def refuse(sentence: str, code: ExitCode = ExitCode.REFUSED) -> CommandError:
    """Return an error that ends the command with this sentence and exit code."""
    return CommandError(shown_text(sentence), returncode=int(code))


BACKEND = option(
    "--backend",
    default="default",
    metavar="ALIAS",
    help="The backend, by its name under TASKS. Default: %(default)s.",
)
JSON = option("--json", action="store_true", help="Write one JSON object, as described above.")
BY = option(
    "--by",
    metavar="NAME",
    help="Name recorded with the action. Default: the user who runs the command.",
)
BECAUSE = option("--because", default="", metavar="TEXT", help="Reason, recorded with the action.")
DRY_RUN = option("--dry-run", action="store_true", help="Only count them; change nothing.")
TASK = option(
    "--task", default="", metavar="PATH", help="Only this task, such as shop.tasks.charge."
)
QUEUE = option("--queue", default="", metavar="NAME", help="Only this queue.")
AFTER = option(
    "--after",
    metavar="MARK",
    help="Continue after a page: each page prints the value for the next one.",
)


NODE = option("--node", default="", metavar="HOST", help="Only jobs that ran or run on this host.")
CHANGE_OPTIONS = (BY, BECAUSE, BACKEND, JSON)
"""The last options of subcommands that change something."""
NO_JOBS = "No jobs. Enqueue one: manage.py stoker enqueue TASK"


def no_cluster(settings: Settings) -> str:
    """Return the line that says that no cluster runs."""
    return f"No cluster is running. Start one: manage.py stoker run{settings.backend_option}"


def limit(default: int | None, what: str = "Maximum number to show.") -> Option:
    """Declare the option ``--limit``."""
    shown = "all" if default is None else "%(default)s"
    help_text = f"{what} Default: {shown}."
    return option("--limit", type=positive, default=default, metavar="N", help=help_text)


PAGE_OPTIONS = (limit(20), AFTER, BACKEND, JSON)
"""The last options of subcommands that show a page of a list."""


def backend_settings(alias: str) -> Settings:
    """Return the settings of a backend.

    Raises:
        ConfigurationError: It does not exist, is not Stoker's, or one of its options is wrong.
    """
    known = ", ".join(task_backends.settings)
    if alias not in task_backends.settings:
        raise ConfigurationError(
            f"TASKS has no backend {alias!r}. "
            + (f"Known: {known}." if known else "Add one; see the reference of settings.")
        )
    try:
        backend = task_backends[alias]
    except InvalidTaskBackend as error:
        raise ConfigurationError(f'TASKS["{alias}"] cannot be used: {error}') from error
    if not isinstance(backend, StokerBackend):
        raise ConfigurationError(
            f'TASKS["{alias}"]["BACKEND"] is {type(backend).__name__}, which has no clusters. Set '
            'it to "stoker.backend.StokerBackend", or choose another backend with --backend.'
        )
    return backend.settings


has_own_process: ContextVar[bool] = ContextVar("has_own_process", default=False)
"""Whether the command runs in a separate process. False: a program has called it
(``call_command``)."""


def within_deadlines(settings: Settings) -> Settings:
    """Limit calls to the store to ``DATABASE_SECONDS`` in this process.

    A program that uses ``call_command`` keeps its connections as they are.
    """
    from stoker.store.statements import set_deadlines

    if has_own_process.get():
        set_deadlines(settings, is_cluster=False)
    return settings


def user() -> str:
    """Return the name of the user of this process; "" if the operating system knows none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # ImportError: Windows without USERNAME, Python < 3.13
        return ""


def as_json(value: Any) -> str:
    """Return a value as one line of JSON. Dataclasses become objects, moments become ISO 8601."""
    return shown_json(json.dumps(value, default=_plain))


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return str(value) if isinstance(value, UUID) else value.isoformat()
