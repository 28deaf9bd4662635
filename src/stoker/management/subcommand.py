"""What the subcommands of ``manage.py stoker`` have in common."""

from __future__ import annotations

import argparse
import getpass
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import asdict, is_dataclass
from enum import IntEnum
from typing import Any, ClassVar

from django.core.management.base import (
    BaseCommand,
    CommandError,
    CommandParser,
    DjangoHelpFormatter,
)

from stoker.compat import InvalidTaskBackend, task_backends
from stoker.conf import Settings, option_fields
from stoker.exceptions import ConfigurationError


class ExitCode(IntEnum):
    """How a command ended."""

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
    "(`memory`), the job will not run until somebody does something (`why`), it failed "
    "(`enqueue --wait`), a dead letter or workflow was left as it is (`dead requeue`, "
    "`dead discard`, `workflows cancel`, `workflows retry`), or a cluster is gone or stopping "
    "(`clusters`).",
    ExitCode.REFUSED: "It could not be done: options, settings or arguments are wrong, nobody "
    "knows the job (`why`), tables are missing, or the store is out of reach.",
    ExitCode.NOT_YET: "The job has not ended within the SECONDS of `enqueue --wait`. It goes on.",
    ExitCode.INTERRUPTED: "Ctrl-C (`run` stops in good order then, and ends with 0).",
    ExitCode.NOBODY_READS: "Whoever read the output has gone, as in `stoker info | head -1`.",
}
"""What each exit code says, for the reference."""


class Subcommand(ABC):
    """One word after ``manage.py stoker``."""

    name: ClassVar[str]
    summary: ClassVar[str]
    """One line for the list of subcommands."""
    description: ClassVar[str]
    examples: ClassVar[str]
    """What to type, with what it is for."""

    def __init__(self, command: BaseCommand) -> None:
        self.command = command

    @abstractmethod
    def add_arguments(self, parser: CommandParser) -> None:
        """Declare options and arguments."""

    @abstractmethod
    def run(self, options: dict[str, Any]) -> ExitCode:
        """Do it, and say how it went.

        Raises:
            CommandError, StokerError: with the one sentence that is told.
        """

    def say(self, text: str = "") -> None:
        """Write a line to standard output."""
        self.command.stdout.write(text)

    def remark(self, text: str) -> None:
        """Write a line to standard error: not what was asked for, but good to know."""
        self.command.stderr.write(text, self.command.style.WARNING)


class SubcommandGroup(Subcommand):
    """A word that further words follow."""

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
    """Django's order of the options; paragraphs as they were written."""


class SubcommandParser(CommandParser):
    """Takes options before, between and after the arguments."""

    _is_inside = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does it, but what nobody knows is refused here, with the right usage."""
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
    """Let a parser know these words. Returns what each stands for."""
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
    """Those of every Django command, after the subcommand as well. Without defaults: what was
    given before the subcommand must stand."""
    hidden: dict[str, Any] = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
    parser.add_argument("-v", "--verbosity", type=int, choices=[0, 1, 2, 3], **hidden)
    for name in ("--settings", "--pythonpath"):
        parser.add_argument(name, **hidden)
    for name in ("--traceback", "--no-color", "--force-color"):
        parser.add_argument(name, action="store_true", **hidden)


def refuse(sentence: str, code: ExitCode = ExitCode.REFUSED) -> CommandError:
    """The error that ends the command with this sentence."""
    return CommandError(sentence, returncode=int(code))


def add_backend(parser: CommandParser) -> None:
    parser.add_argument(
        "--backend",
        default="default",
        metavar="ALIAS",
        help="The backend, by its name under TASKS. Default: %(default)s.",
    )


def backend_settings(alias: str) -> Settings:
    """The settings of a backend.

    Raises:
        ConfigurationError: there is none, it is not Stoker's, or one of its options is wrong.
    """
    from stoker.backend import StokerBackend

    known = ", ".join(task_backends.settings)
    if alias not in task_backends.settings:
        raise ConfigurationError(
            f"TASKS has no backend {alias!r}. "
            + (f"There is: {known}." if known else "Add one; see the reference of settings.")
        )
    try:
        backend = task_backends[alias]
    except InvalidTaskBackend as error:
        raise ConfigurationError(f'TASKS["{alias}"] cannot be used: {error}') from error
    if not isinstance(backend, StokerBackend):
        raise ConfigurationError(
            f'TASKS["{alias}"]["BACKEND"] is {type(backend).__name__}, which has no cluster: name '
            '"stoker.backend.StokerBackend" there, or another one with --backend.'
        )
    return backend.settings


has_own_process: ContextVar[bool] = ContextVar("has_own_process", default=False)
"""Whether the command that runs is a program, and not called by one."""


def within_deadlines(settings: Settings) -> Settings:
    """From here on, no call to the store takes longer than ``DATABASE_SECONDS``; but a program that
    uses ``call_command`` has its connections as they were."""
    from stoker.brokers.patience import set_deadlines

    if has_own_process.get():
        set_deadlines(settings, is_cluster=False)
    return settings


def user() -> str:
    """Who runs this, as the operating system says; "" where it has no name for him."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def one_sentence(error: BaseException) -> str:
    """The first line of what went wrong."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def as_json(value: Any) -> str:
    """Plain values, dataclasses and moments (ISO 8601) as one line of JSON."""
    return json.dumps(value, default=_plain)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return value.isoformat()


def positive_seconds(text: str) -> float:
    """An argparse type: a number of seconds above 0."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} must be a number of seconds above 0")
    return seconds


def setting(key: str, convert: Callable[[str], Any]) -> Callable[[str], Any]:
    """An argparse type: a value that the setting of that name would take."""

    def checked(text: str) -> Any:
        try:
            return option_fields()[key].metadata["check"](convert(text))
        except ValueError as error:
            sentence = str(error) if str(error).startswith("must ") else "must be a number"
            raise argparse.ArgumentTypeError(f"{text!r} {sentence}") from None

    return checked
