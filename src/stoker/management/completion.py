"""``manage.py stoker completion``: write a shell script that completes the subcommands."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from .subcommand import ExitCode, Subcommand, option

SCRIPT = """\
# Completion of `manage.py stoker`, written by `manage.py stoker completion {shell}`.
{preamble}_stoker_completion() {{
    local at="" i word words="" known=" {paths} "
    local current="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}"
    for ((i = 1; i < COMP_CWORD; i++)); do
        word="$at/${{COMP_WORDS[i]}}"
        [[ "$known" == *" $word "* ]] && at="$word"
    done
    case "$at $before" in
{values}
    esac
    [[ -n "$words" ]] || case "$at" in
{words}
    esac
    [[ -n "$words" ]] && COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _stoker_completion manage.py ./manage.py
"""
PREAMBLES = {"bash": "", "zsh": "autoload -U +X bashcompinit && bashcompinit\n"}
Parsers = list[tuple[str, argparse.ArgumentParser]]


class CompletionCommand(Subcommand):
    """Write the script for completion in a shell.

    Write a script that lets bash or zsh complete subcommands, options and their values after
    `manage.py stoker` or `./manage.py stoker`. In your shell:
    `source <(./manage.py stoker completion bash)`

    Examples:
      manage.py stoker completion bash
    """

    name = "completion"
    options = (option("shell", choices=(*PREAMBLES,), help="The shell."),)

    def run(self, options: dict[str, Any]) -> ExitCode:
        # A new command has the parsers of all subcommands.
        parser = type(self.command)().create_parser("manage.py", "stoker")
        self.say(script_of(options["shell"], parser).rstrip())
        return ExitCode.DONE


def script_of(shell: str, parser: argparse.ArgumentParser) -> str:
    """Return the script for this parser of ``manage.py stoker``."""
    found = list(_parsers_of("/stoker", parser))
    return SCRIPT.format(
        shell=shell,
        preamble=PREAMBLES[shell],
        paths=" ".join(path for path, _ in found),
        values="\n".join(_values_of(found)),
        words="\n".join(f'        {path}) words="{_words_of(one)}" ;;' for path, one in found),
    )


def _parsers_of(
    path: str, parser: argparse.ArgumentParser
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    yield path, parser
    for name, one in _subparsers_of(parser).items():
        yield from _parsers_of(f"{path}/{name}", one)


def _subparsers_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _words_of(parser: argparse.ArgumentParser) -> str:
    """Return the subcommands, or the options that help shows."""
    shown = [one for one in parser._actions if one.help is not argparse.SUPPRESS]
    options = [flag for one in shown for flag in one.option_strings if flag.startswith("--")]
    choices = [str(word) for one in shown if not one.option_strings for word in one.choices or ()]
    return " ".join([*choices] if _subparsers_of(parser) else [*choices, *options])


def _values_of(found: Parsers) -> Iterator[str]:
    """Yield a ``case`` for each option that takes one of a few values."""
    for path, parser in found:
        for one in parser._actions:
            if one.option_strings and one.choices and one.help is not argparse.SUPPRESS:
                values = " ".join(map(str, one.choices))
                flags = " | ".join(f'"{path} {flag}"' for flag in one.option_strings)
                yield f'        {flags}) words="{values}" ;;'
