"""The desk: the one place where signals become calls of reporters. Nothing is connected that no
reporter wants, so a project without reporters pays nothing, and what a reporter raises stays here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any
from uuid import UUID

from django.core.checks import CheckMessage, Error
from django.dispatch import Signal

from stoker import signals
from stoker.conf import settings_for
from stoker.events import tell
from stoker.exceptions import ConfigurationError
from stoker.lifecycle.failures import Failure
from stoker.lifecycle.firing import Fired
from stoker.lifecycle.outcomes import Outcome
from stoker.lifecycle.running import current
from stoker.results import Result
from stoker.tasks import own_backends

from .base import Reporter
from .loading import load
from .mailbox import Mailbox

HOOKS: dict[str, Signal] = {
    "begin": signals.post_spawn,
    "on_enqueue": signals.pre_enqueue,
    "on_start": signals.pre_execute,
    "on_end": signals.post_execute_in_worker,
    "on_failure": signals.attempt_failed,
    "on_tick": signals.post_tick,
}


class Seat:
    """One reporter at the desk."""

    def __init__(self, name: str, reporter: Reporter) -> None:
        self.name = name
        self._reporter = reporter
        self._mailbox = None if reporter.never_waits else Mailbox(name)
        self._complained: set[str] = set()

    def wants(self, hook: str) -> bool:
        return getattr(type(self._reporter), hook) is not getattr(Reporter, hook)

    def call(self, hook: str, *args: Any) -> None:
        """Now. What it raises is told, once for each hook."""
        try:
            getattr(self._reporter, hook)(*args)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with it must harm no job
            if hook not in self._complained:
                self._complained.add(hook)
                described = f"{type(error).__name__}: {error}"
                tell("reporter_failed", reporter=self.name, hook=hook, error=described)

    def send(self, hook: str, *args: Any) -> None:
        """Now, if it never waits; else in its own thread."""
        if self._mailbox is None:
            self.call(hook, *args)
        else:
            self._mailbox.put(partial(self.call, hook, *args))

    def flush(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        if self._mailbox is not None:
            self._mailbox.flush(seconds)
        self.call("flush", max(0.0, until - time.monotonic()))


class Desk:
    """All reporters of this process, by the name of the backend under ``TASKS``."""

    def __init__(self) -> None:
        self._seats: dict[str, list[Seat]] = {}
        self.problems: list[str] = []
        """Why reporters could not be had, a sentence each."""

    def open(self) -> None:
        """Load the reporters that ``TASKS`` names, and listen for them."""
        self._seats.clear()
        self.problems.clear()
        for alias in own_backends():
            for seat in self._load(alias):
                self._seats.setdefault(alias, []).append(seat)
        for hook, signal in HOOKS.items():
            receiver = getattr(self, f"_{hook}")
            signal.disconnect(receiver)
            if any(seat.wants(hook) for seats in self._seats.values() for seat in seats):
                signal.connect(receiver)
        signals.pre_exit.disconnect(self._flush)
        if self._seats:
            signals.pre_exit.connect(self._flush)

    def _load(self, alias: str) -> Iterator[Seat]:
        try:
            named = settings_for(alias).reporters
        except ConfigurationError:  # `manage.py check` says what is wrong
            return
        for one in named:
            try:
                yield Seat(one.name, load(alias, one))
            except ConfigurationError as error:
                self.problems.append(str(error))
                tell("reporter_not_loaded", because=str(error))

    def _of(self, alias: str, hook: str) -> list[Seat]:
        return [seat for seat in self._seats.get(alias, ()) if seat.wants(hook)]

    # -- one receiver for each hook ---------------------------------------------------------------

    def _begin(self, *, role: str, backend: str, **_: Any) -> None:
        for seat in self._of(backend, "begin"):
            seat.call("begin", role)

    def _on_enqueue(self, *, task: Any, job_id: UUID, metadata: dict[str, str], **_: Any) -> None:
        for seat in self._of(task.backend, "on_enqueue"):
            seat.call("on_enqueue", task, job_id, metadata)

    def _on_start(self, *, task_result: Result[Any], **_: Any) -> None:
        running = current.get()
        for seat in self._of(task_result.backend, "on_start"):
            seat.call("on_start", running, task_result)

    def _on_end(self, *, task_result: Result[Any], outcome: Outcome, **_: Any) -> None:
        running = current.get()
        for seat in reversed(self._of(task_result.backend, "on_end")):
            seat.call("on_end", running, task_result, outcome)

    def _on_failure(self, *, failure: Failure, **_: Any) -> None:
        for seat in self._of(failure.backend, "on_failure"):
            seat.send("on_failure", failure)

    def _on_tick(self, *, fired: Fired, **_: Any) -> None:
        for seat in self._of(fired.schedule.backend, "on_tick"):
            seat.send("on_tick", fired)

    def _flush(self, *, seconds: float, **_: Any) -> None:
        """All at once, and no longer than that, whatever they do."""
        until = time.monotonic() + seconds
        threads = [
            threading.Thread(target=seat.flush, args=[seconds], daemon=True)
            for seats in self._seats.values()
            for seat in seats
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))


desk = Desk()


def check_reporters(**_: Any) -> list[CheckMessage]:
    """What keeps reporters from being told anything."""
    hint = "See docs/howto/report-errors.md."
    return [Error(problem, hint=hint, id="stoker.E010") for problem in desk.problems]
