"""Connect signals to the reporters.

Only signals that a reporter handles are connected, so a project without reporters has no cost.
Errors of reporters do not leave this module.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.metadata import entry_points
from inspect import signature
from typing import Any, cast
from uuid import UUID
from weakref import WeakSet

from django.core.checks import CheckMessage, Error
from django.dispatch import Signal
from django.utils.module_loading import import_string

from stoker import signals
from stoker.conf import settings_for
from stoker.exceptions import ConfigurationError, TaskCancelled
from stoker.jobs.attempt_signals import reporters_cancel, reporters_end, reporters_start
from stoker.jobs.failures import Failure
from stoker.jobs.outcomes import Outcome
from stoker.jobs.results import Result
from stoker.jobs.running import current
from stoker.schedules.fire import Fired
from stoker.setting_values import NamedReporter
from stoker.signals import tell
from stoker.tasks.decorator import own_backends
from stoker.values.forks import after_fork

from .base import Reporter

GROUP = "stoker.reporters"
OWN = {
    "sentry": "stoker.reporters.sentry.SentryReporter",
    "rollbar": "stoker.reporters.rollbar.RollbarReporter",
    "opentelemetry": "stoker.reporters.opentelemetry.OpenTelemetryReporter",
    "prometheus": "stoker.reporters.prometheus.PrometheusReporter",
    "webhook": "stoker.reporters.webhook.WebhookReporter",
}


OF_ONE_SDK = ("sentry", "rollbar")
"""Reporters that pass further options to an SDK of which a process has only one."""
PLAIN = (str, int, float, bool, type(None))


def load(alias: str, named: NamedReporter) -> Reporter:
    """Create a reporter with its options.

    Raises:
        ConfigurationError: the message says why it cannot be created.
    """
    where = f'TASKS["{alias}"]["OPTIONS"]["REPORTERS"]'
    kind = _find(where, named.name)
    if not (isinstance(kind, type) and issubclass(kind, Reporter)):
        raise ConfigurationError(
            f"{where} has {named.name!r}, which is not a subclass of "
            "stoker.reporters.base.Reporter."
        )
    try:
        reporter = kind(**named.options)
    except Exception as error:
        raise ConfigurationError(
            f"{where}: {named.name!r} does not take its options: {type(error).__name__}: {error}."
        ) from error
    # Only webhooks are sent by jobs.
    queue, queues = getattr(reporter, "_queue_of_jobs", ""), settings_for(alias).queues
    if queue and queues and queue not in queues:
        raise ConfigurationError(
            f"{where}: {named.name!r} names the queue {queue!r}, but QUEUES has "
            f"{', '.join(queues)}."
        )
    return reporter


def check_label(alias: str, name: str, label: str, labels: set[tuple[str, str]]) -> None:
    """Add the name and label of a reporter to those before it.

    Raises:
        ConfigurationError: a reporter before it has the same name and label.
    """
    if label and (name, label) in labels:
        raise ConfigurationError(
            f'TASKS["{alias}"]["OPTIONS"]["REPORTERS"]: two of {name!r} are named {label!r}. '
            "Give each a different `name`."
        )
    labels.add((name, label))


def check_sdk(
    alias: str, named: NamedReporter, known: dict[str, tuple[str, Mapping[str, Any]]]
) -> None:
    """Add the options of a reporter's SDK to those of other backends.

    Args:
        known: name of a reporter -> the first backend that has such options, and the options.

    Raises:
        ConfigurationError: another backend has different ones, as far as they are plain values.
    """
    where = f'TASKS["{alias}"]["OPTIONS"]["REPORTERS"]'
    if named.name not in OF_ONE_SDK:
        return
    own = signature(cast(Callable[..., Any], _find(where, named.name))).parameters
    given = {option: value for option, value in named.options.items() if option not in own}
    if not given:
        return
    first, before = known.setdefault(named.name, (alias, given))
    one, other = _plain(before), _plain(given)
    differing = [name for name in {**one, **other} if one.get(name, ...) != other.get(name, ...)]
    if differing:
        raise ConfigurationError(
            f"{where}: {named.name!r} has another {', '.join(differing)} than in "
            f'TASKS["{first}"]. A process has only one such SDK, so give both the same.'
        )


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that can be compared. Two objects, such as integrations of Sentry, may
    differ although they are declared alike."""
    return {name: value for name, value in options.items() if isinstance(value, PLAIN)}


def _find(where: str, name: str) -> object:
    try:
        if name in OWN:
            return import_string(OWN[name])
        for point in entry_points(group=GROUP):
            if point.name == name:
                return point.load()
        if "." in name:
            return import_string(name)
    except ModuleNotFoundError as error:
        if name not in OWN:
            raise _not_imported(where, name, error) from error
        raise ConfigurationError(
            f"{where} has {name!r}, which needs the package {error.name!r}: "
            f"pip install 'django-stoker[{name}]'."
        ) from error
    except Exception as error:
        raise _not_imported(where, name, error) from error
    known = ", ".join(sorted({*OWN, *(point.name for point in entry_points(group=GROUP))}))
    raise ConfigurationError(
        f"{where} has {name!r}, which is not the name of a reporter: write one of {known}, or the "
        "dotted path of a class."
    )


def _not_imported(where: str, name: str, error: Exception) -> ConfigurationError:
    return ConfigurationError(
        f"{where} has {name!r}, which cannot be imported: {type(error).__name__}: {error}."
    )


MOST_WAITING = 100

_mailboxes: WeakSet[Mailbox] = WeakSet()


class Mailbox:
    """The queue of calls to one reporter in this process.

    Its thread starts with the first call, and does not keep the process from exiting.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self.dropped = 0
        """Number of calls that were dropped because the queue was full."""
        self.begin_anew()
        _mailboxes.add(self)

    def begin_anew(self) -> None:
        """Start with an empty queue and without a thread. A forked child must call this."""
        self._waiting: queue.Queue[Callable[[], object]] = queue.Queue(MOST_WAITING)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def put(self, send: Callable[[], object]) -> None:
        """Call ``send`` soon, unless the queue is full. ``send`` must not raise."""
        try:
            self._start()
            self._waiting.put_nowait(send)
        except (queue.Full, RuntimeError):  # RuntimeError: there can be no further thread
            self.dropped += 1
            if is_round(self.dropped):
                tell("reports_dropped", reporter=self._owner, count=self.dropped)

    def flush(self, seconds: float) -> None:
        """Wait until all queued calls are made, at most ``seconds``."""
        waiting = self._waiting
        with waiting.all_tasks_done:
            waiting.all_tasks_done.wait_for(lambda: not waiting.unfinished_tasks, seconds)

    def _start(self) -> None:
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                name = f"stoker-{self._owner}"
                thread = threading.Thread(target=self._run, name=name, daemon=True)
                thread.start()
                self._thread = thread

    def _run(self) -> None:
        while True:
            send = self._waiting.get()
            try:
                send()
            finally:
                del send
                self._waiting.task_done()


def is_round(number: int) -> bool:
    """Return whether a count is 1, 10, 100, ... It is used to log a repeated problem less and less
    often."""
    return str(number).rstrip("0") == "1"


def _begin_anew() -> None:
    for mailbox in list(_mailboxes):
        mailbox.begin_anew()


after_fork(_begin_anew)


HOOKS: dict[str, Signal] = {
    "begin": signals.post_spawn,
    "on_enqueue": signals.pre_enqueue,
    "on_start": reporters_start,
    "on_end": reporters_end,
    "on_failure": signals.attempt_failed,
    "on_cancel": reporters_cancel,
    "on_tick": signals.post_tick,
}


class LoadedReporter:
    """A reporter with its queue of calls."""

    def __init__(self, name: str, reporter: Reporter) -> None:
        self.name = name
        self._reporter = reporter
        self._mailbox = None if reporter.never_waits else Mailbox(name)
        self._complained: set[str] = set()

    def wants(self, hook: str) -> bool:
        return getattr(type(self._reporter), hook) is not getattr(Reporter, hook)

    def call(self, hook: str, *args: Any) -> None:
        """Call a hook now. Errors are logged, once for each hook."""
        try:
            getattr(self._reporter, hook)(*args)
        except (KeyboardInterrupt, TaskCancelled):
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it raises must harm no job
            if hook not in self._complained:
                self._complained.add(hook)
                described = f"{type(error).__name__}: {error}"
                tell("reporter_failed", reporter=self.name, hook=hook, error=described)

    def send(self, hook: str, *args: Any) -> None:
        """Call a hook at once if the reporter never blocks, otherwise in its thread."""
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
    """All reporters of this process, by the alias of the backend in ``TASKS``."""

    def __init__(self) -> None:
        self._seats: dict[str, list[LoadedReporter]] = {}
        self.problems: list[str] = []
        """One sentence for each reporter that could not be loaded."""

    def open(self) -> None:
        """Load the reporters that ``TASKS`` names, and connect their signals."""
        self._seats.clear()
        self.problems.clear()
        known: dict[str, tuple[str, Mapping[str, Any]]] = {}
        for alias in own_backends():
            for seat in self._load(alias, known):
                self._seats.setdefault(alias, []).append(seat)
        for hook, signal in HOOKS.items():
            receiver = getattr(self, f"_{hook}")
            signal.disconnect(receiver)
            if any(seat.wants(hook) for seats in self._seats.values() for seat in seats):
                signal.connect(receiver)
        signals.pre_exit.disconnect(self._flush)
        if self._seats:
            signals.pre_exit.connect(self._flush)

    def _load(
        self, alias: str, known: dict[str, tuple[str, Mapping[str, Any]]]
    ) -> Iterator[LoadedReporter]:
        try:
            named = settings_for(alias).reporters
        except ConfigurationError:  # `manage.py check` says what is wrong
            return
        labels: set[tuple[str, str]] = set()
        for one in named:
            try:
                check_sdk(alias, one, known)
                reporter = load(alias, one)
                check_label(alias, one.name, reporter.label, labels)
                yield LoadedReporter(one.name, reporter)
            except ConfigurationError as error:
                self.problems.append(str(error))
                tell("reporter_not_loaded", because=str(error))

    def _of(self, alias: str, hook: str) -> list[LoadedReporter]:
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

    def _on_cancel(self, *, failure: Failure, **_: Any) -> None:
        for seat in self._of(failure.backend, "on_cancel"):
            seat.send("on_cancel", failure)

    def _on_tick(self, *, fired: Fired, **_: Any) -> None:
        for seat in self._of(fired.schedule.backend, "on_tick"):
            seat.send("on_tick", fired)

    def _flush(self, *, seconds: float, **_: Any) -> None:
        """Flush all reporters in parallel, within the given time."""
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
    """Report the reporters that could not be loaded."""
    hint = "See docs/howto/report-errors.md."
    return [Error(problem, hint=hint, id="stoker.E010") for problem in desk.problems]
