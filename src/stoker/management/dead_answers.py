"""What is said after something was done about dead letters."""

from __future__ import annotations

from typing import Any

from stoker.dead_letters import Bulk

from .subcommand import ExitCode, Subcommand, as_json

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
