"""``manage.py stoker tasks``: list the tasks of the project, with their recent results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

from stoker.metrics import Figures, by_task
from stoker.operations.wording import duration as seconds_text
from stoker.tasks.registry import tasks_of_apps
from stoker.values.durations import in_words

from .arguments import duration
from .subcommand import BACKEND, JSON, ExitCode, OutputLine, Subcommand, heading, option

SHOWN_OPTIONS = ("queue_name", "priority", "max_attempts", "timeout", "unique", "lock", "atomic")
"""The options that ``stoker tasks --json`` shows of each task."""


class TasksCommand(Subcommand):
    """List the tasks and the results of their recent jobs.

    List the tasks in the modules named tasks of the project's apps, and all other tasks with recent
    jobs: queue, limits, how many jobs succeeded and failed, and how long they ran.

    --json writes one object: since_seconds, tasks[] {name, is_declared (in such a module),
    options {queue_name, priority, max_attempts, timeout, unique, lock, atomic}, figures
    {successful, failed, cancelled, retried, run, wait} or null}.

    Examples:
      manage.py stoker tasks
      manage.py stoker tasks --since 7d
    """

    name = "tasks"
    options = (
        option(
            "--since",
            type=duration,
            default=timedelta(hours=1),
            metavar="AGE",
            help="How far to look back, such as 15m or 7d. Default: 1h.",
        ),
        BACKEND,
        JSON,
    )

    def run(self, options: dict[str, Any]) -> ExitCode:
        settings, now = self.settings(options), datetime.now(UTC)
        seen = {one.task: one.figures for one in by_task(settings, now - options["since"], now)}
        declared = tasks_of_apps()
        names = sorted({*declared, *filter(None, seen)})
        plain = [
            {
                "name": name,
                "is_declared": name in declared,
                "options": _options_of(declared.get(name)),
                "figures": asdict(seen[name]) if name in seen else None,
            }
            for name in names
        ]
        back_seconds = options["since"].total_seconds()
        self.answer(
            options,
            {"since_seconds": back_seconds, "tasks": plain},
            self._lines(names, declared, seen, back_seconds),
        )
        return ExitCode.DONE

    def _lines(
        self,
        names: list[str],
        declared: Mapping[str, Any],
        seen: Mapping[str, Figures],
        back_seconds: float,
    ) -> Iterator[OutputLine]:
        for name in names:
            yield heading(name)
            if name in declared:
                yield f"  queue {declared[name].queue_name}, {_limits(declared[name])}"
            else:
                yield "  not in a module named tasks of this project's apps"
            if name in seen:
                yield f"  last {in_words(back_seconds)}: {_did(seen[name])}"
        if not names:
            yield "No app has a task. Declare one with @task in its tasks.py."


def _options_of(task: Any) -> dict[str, Any]:
    return {
        name: value if isinstance(value, int | float | str | None) else str(value)
        for name in SHOWN_OPTIONS
        if (value := getattr(task, name, None)) is not None
    }


def _limits(task: Any) -> str:
    limits = f"attempts {getattr(task, 'max_attempts', None) or 'as the settings say'}"
    timeout = getattr(task, "timeout", None)
    return limits if timeout is None else f"{limits}, at most {timeout:g} s"


def _did(figures: Figures) -> str:
    ran = seconds_text(figures.run.p50)
    return f"{figures.successful:,} done, {figures.failed:,} failed, half within {ran}"
