"""Sentry: errors, traces from enqueue to run, and a cron monitor for each schedule.

The SDK sends events in its own thread, from a short queue that drops further events. So all hooks
are called at once, in the job's context.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar
from uuid import UUID

import sentry_sdk
from sentry_sdk.crons import capture_checkin
from sentry_sdk.integrations.logging import ignore_logger
from sentry_sdk.tracing_utils import has_tracing_enabled
from sentry_sdk.transport import make_transport
from sentry_sdk.utils import event_from_exception, iter_event_frames

from stoker.compat import TASKS_APP
from stoker.conf import settings_for
from stoker.jobs.failures import Failure
from stoker.jobs.outcomes import Cancelled, Outcome, Succeeded
from stoker.jobs.received import package_as_sealed
from stoker.jobs.results import Result
from stoker.jobs.running import Running
from stoker.models import Schedule, Tick
from stoker.operations.tracebacks import is_own_path
from stoker.schedules.fire import NAME, Fired
from stoker.values.cron import NAMES

from .base import Reporter
from .facts import (
    Facts,
    arguments_of_failure,
    facts_of_attempt,
    facts_of_failure,
    secrets_hider,
)

LONGEST_SLUG = 50
CRON_FIELDS = 5
UNITS = {
    "minutes": ("minute", 1),
    "hours": ("hour", 1),
    "days": ("day", 1),
    "weeks": ("week", 1),
    "months": ("month", 1),
    "quarters": ("month", 3),
    "years": ("year", 1),
}
"""Stoker's unit -> Sentry's unit, and the factor."""
SECONDS_PER_MINUTE = 60


def monitor_config(schedule: Schedule) -> dict[str, Any] | None:
    """Return the schedule in Sentry's format, so that Sentry notices a missing tick.

    Returns None for rules that Sentry does not support: a single moment, or fractions of a minute.
    """
    rule = _rule(schedule)
    return None if rule is None else {"schedule": rule, "timezone": schedule.zone}


def slug_of(name: str) -> str:
    """Return the monitor's slug: at most 50 of a-z, 0-9, _ and -. If the name loses more than its
    case, spaces and dots, a digest keeps the slug unique."""
    slug = re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-")
    if slug == re.sub(r"[ .]", "-", name.lower()) and 0 < len(slug) <= LONGEST_SLUG:
        return slug
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{slug[: LONGEST_SLUG - 9]}-{digest}".strip("-")


def _rule(schedule: Schedule) -> dict[str, Any] | None:
    if schedule.kind == Schedule.Kind.CRON:
        expression = NAMES.get(schedule.expression.lower(), schedule.expression)
        if len(expression.split()) != CRON_FIELDS:
            return None
        return {"type": "crontab", "value": expression}
    if schedule.kind == Schedule.Kind.INTERVAL:
        count, unit = schedule.count, schedule.unit
        if unit == "seconds" and count % SECONDS_PER_MINUTE == 0:
            count, unit = count // SECONDS_PER_MINUTE, "minutes"
        if unit in UNITS:
            name, factor = UNITS[unit]
            return {"type": "interval", "value": count * factor, "unit": name}
    return None


ORIGIN = "auto.queue.stoker"
MECHANISM = {"type": "stoker", "handled": False}
TRACE, BAGGAGE = "sentry-trace", "sentry-baggage"
"""Names of the metadata that contain the trace. "baggage" alone would be OpenTelemetry's."""
TOLD_HERE = {"attempt_failed", "dead_lettered", "worker_died", "worker_killed"}
"""Log events that this class reports itself, with more details."""

STATUS = {"succeeded": "ok", "snoozed": "ok", "cancelled": "cancelled"}
"""Outcome -> status of its transaction. Other outcomes have an error status."""


@dataclass(slots=True)
class _Attempt:
    """The open contexts of a running attempt."""

    stack: ExitStack
    began: float
    """Start in monotonic seconds."""
    outcome: str = ""


_running: ContextVar[_Attempt | None] = ContextVar("stoker_sentry", default=None)


class SentryReporter(Reporter):
    """Reports to Sentry, as the project's ``sentry_sdk.init()`` has configured it.

    Args:
        arguments: whether errors contain the job's arguments.
        report_retries: whether failed attempts that will be retried are reported as warnings.
        tracing: whether traces continue from enqueue to run. The SDK's ``traces_sample_rate``
            decides how many are recorded.
        monitors: whether each schedule has a cron monitor.
        monitor_config: further options of monitors, in Sentry's terms: minutes of
            ``checkin_margin`` and ``max_runtime``, ``failure_issue_threshold``, ...
        init: other options are passed to ``sentry_sdk.init()``, which is called if there are any.
    """

    never_waits: ClassVar[bool] = True

    def __init__(
        self,
        *,
        arguments: bool = True,
        report_retries: bool = False,
        tracing: bool = True,
        monitors: bool = True,
        monitor_config: Mapping[str, Any] | None = None,
        **init: Any,
    ) -> None:
        self._shows_arguments = arguments
        self._reports_retries = report_retries
        self._traces = tracing
        self._monitors = monitors
        self._monitor_config = dict(monitor_config or {})
        if init:
            sentry_sdk.init(**init)
        scope = sentry_sdk.get_global_scope()
        if _leave_out_told not in scope._event_processors:  # the SDK bounds their number
            scope.add_event_processor(_leave_out_told)

    def begin(self, role: str) -> None:
        """Create a new transport, because that of a forked parent may rely on a missing thread.

        Django's own logging of task errors is ignored, because they are reported here.
        """
        ignore_logger(TASKS_APP)
        if sentry_sdk.is_initialized():
            client = sentry_sdk.get_client()
            client.transport = make_transport(client.options)

    # -- traces -----------------------------------------------------------------------------------

    def on_enqueue(self, task: Any, job_id: UUID, metadata: dict[str, str]) -> None:
        if not self._traces or not sentry_sdk.is_initialized():
            return
        with (
            _own_trace(metadata),
            sentry_sdk.start_span(op="queue.publish", name=task.module_path, origin=ORIGIN) as span,
        ):
            span.set_data("messaging.system", "stoker")
            span.set_data("messaging.message.id", str(job_id))
            span.set_data("messaging.destination.name", task.queue_name)
            carried = {TRACE: sentry_sdk.get_traceparent(), BAGGAGE: sentry_sdk.get_baggage()}
        metadata.update({key: value for key, value in carried.items() if value})

    def on_start(self, running: Running, result: Result[Any]) -> None:
        if not sentry_sdk.is_initialized():
            return
        stack = ExitStack()
        scope = stack.enter_context(sentry_sdk.isolation_scope())
        scope.clear_breadcrumbs()
        _describe(scope, facts_of_attempt(running, result))
        scope.add_event_processor(partial(_hide_secrets, running))
        if self._traces:
            transaction = sentry_sdk.continue_trace(
                _headers(running.metadata),
                op="queue.process",
                name=running.task,
                source="task",
                origin=ORIGIN,
            )
            stack.enter_context(sentry_sdk.start_transaction(transaction))
            transaction.set_data("messaging.system", "stoker")
            transaction.set_data("messaging.message.id", str(running.job_id))
            transaction.set_data("messaging.destination.name", running.queue)
            transaction.set_data("messaging.message.retry.count", running.attempt - 1)
            transaction.set_data("messaging.message.receive.latency", _latency_ms(result))
            stack.callback(_say_how_it_ended, transaction)
        _running.set(_Attempt(stack, time.monotonic()))

    def on_end(self, running: Running, result: Result[Any], outcome: Outcome) -> None:
        attempt = _running.get()
        if attempt is None:
            return
        attempt.outcome = outcome.kind
        attempt.stack.close()
        _running.set(None)
        if NAME in running.metadata and isinstance(outcome, Succeeded | Cancelled):
            status = "ok" if isinstance(outcome, Succeeded) else "error"
            seconds = time.monotonic() - attempt.began
            self._check_in(running.job_id, running.metadata[NAME], status, seconds)

    def on_cancel(self, failure: Failure) -> None:
        metadata = failure.package.metadata if failure.package else {}
        if NAME in metadata:
            self._check_in(failure.job_id, metadata[NAME], "error")

    # -- errors -----------------------------------------------------------------------------------

    def on_failure(self, failure: Failure) -> None:
        metadata = failure.package.metadata if failure.package else {}
        if failure.is_final and NAME in metadata:
            self._check_in(failure.job_id, metadata[NAME], "error")
        if not sentry_sdk.is_initialized() or not (failure.is_final or self._reports_retries):
            return
        with self._scope_of(metadata) as scope:
            _describe(scope, facts_of_failure(failure))
            if self._shows_arguments:
                scope.set_context("arguments", arguments_of_failure(failure))
            scope.set_tag("stoker.reason", failure.reason)
            scope.set_level("error" if failure.is_final else "warning")
            if failure.exception is None:
                sentry_sdk.capture_event(_event_of(failure))
                return
            event, hint = event_from_exception(
                failure.exception,
                client_options=sentry_sdk.get_client().options,
                mechanism=MECHANISM,
            )
            sentry_sdk.capture_event(event, hint=hint)

    @contextmanager
    def _scope_of(self, metadata: Mapping[str, str]) -> Iterator[sentry_sdk.Scope]:
        """Return the scope of the attempt. If it has none, return a new scope that continues the
        job's trace."""
        if _running.get() is not None:
            with sentry_sdk.new_scope() as scope:
                yield scope
            return
        with sentry_sdk.isolation_scope() as scope:
            scope.clear_breadcrumbs()
            if self._traces:
                sentry_sdk.continue_trace(_headers(metadata))
            yield scope

    # -- monitors ---------------------------------------------------------------------------------

    def on_tick(self, fired: Fired) -> None:
        if fired.job_id is None or fired.outcome != Tick.Outcome.FIRED:
            return
        config = monitor_config(fired.schedule)
        if config is not None:
            self._check_in(
                fired.job_id,
                fired.schedule.name,
                "in_progress",
                config={**config, **self._monitor_config},
            )

    def _check_in(
        self,
        job_id: UUID,
        schedule: str,
        status: str,
        seconds: float | None = None,
        *,
        config: Any = None,
    ) -> None:
        """Report a check-in. Each job is one check-in, which the job's id identifies in every
        process."""
        if self._monitors and sentry_sdk.is_initialized():
            capture_checkin(
                monitor_slug=slug_of(schedule),
                check_in_id=job_id.hex,
                status=status,
                duration=seconds,
                monitor_config=config,
            )

    def flush(self, seconds: float) -> None:
        sentry_sdk.flush(timeout=seconds)


@contextmanager
def _own_trace(metadata: Mapping[str, str]) -> Iterator[None]:
    """Start a new trace in the block if no request or job is being traced.

    Else all jobs that a scheduler enqueues would share one trace, recorded as a whole or not
    at all. Without tracing, do so only for jobs of a schedule: others continue the trace of their
    request's errors.
    """
    is_traced = has_tracing_enabled(sentry_sdk.get_client().options)
    with sentry_sdk.new_scope() as scope:
        span = scope.span  # the SDK's spans of signal receivers may be outside of a transaction
        is_part = span is not None and span.containing_transaction is not None
        if not is_part and (is_traced or NAME in metadata):
            scope.span = None
            scope.set_new_propagation_context()
        yield


def _say_how_it_ended(transaction: Any) -> None:
    attempt = _running.get()
    kind = attempt.outcome if attempt else ""
    transaction.set_tag("stoker.outcome", kind)
    transaction.set_status(STATUS.get(kind, "internal_error"))


def _describe(scope: sentry_sdk.Scope, facts: Facts) -> None:
    scope.set_context("stoker", facts)
    for name in ("task", "queue", "job_id", "attempt", "schedule", "workflow"):
        if name in facts:
            scope.set_tag(f"stoker.{name}", facts[name])
    scope.set_transaction_name(facts["task"] or "an unknown task", source="task")


def _event_of(failure: Failure) -> Any:
    """Return the event of a failure without an exception object, built from the stored text."""
    module, _, name = failure.fault.exception_class.rpartition(".")
    raised = {
        "type": name,
        "module": module,
        "value": failure.fault.message,
        "mechanism": MECHANISM,
    }
    return {
        "exception": {"values": [raised]},
        "extra": {"traceback": failure.fault.traceback},
        "fingerprint": ["stoker", failure.task, failure.reason, failure.fault.exception_class],
    }


def _headers(metadata: Mapping[str, str]) -> dict[str, str]:
    named = {"sentry-trace": TRACE, "baggage": BAGGAGE}
    return {header: metadata[key] for header, key in named.items() if key in metadata}


def _latency_ms(result: Result[Any]) -> float:
    if result.enqueued_at is None or result.started_at is None:
        return 0.0
    return max(0.0, (result.started_at - result.enqueued_at).total_seconds() * 1000)


def _hide_secrets(running: Running, event: Any, _hint: Any) -> Any:
    """Hide the arguments of the running job in messages and local variables of an event. Leave
    out the variables of Stoker's own frames, which have the whole call."""
    package = package_as_sealed(settings_for(running.backend), running)
    hide = secrets_hider(package, running.backend)
    for name in ("logentry", "message", "breadcrumbs", "extra"):
        if name in event:
            event[name] = hide(event[name])
    for raised in event.get("exception", {}).get("values", ()):
        raised["value"] = hide(raised.get("value"))
    for frame in iter_event_frames(event):  # of exceptions, and of a stack that was logged
        if is_own_path(frame.get("abs_path") or ""):
            frame.pop("vars", None)
        elif "vars" in frame:
            frame["vars"] = hide(frame["vars"])
    return event


def _leave_out_told(event: Any, hint: Any) -> Any:
    record = (hint or {}).get("log_record")
    return None if getattr(record, "stoker_event", "") in TOLD_HERE else event
