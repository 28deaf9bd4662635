"""OpenTelemetry: spans linked from enqueue to run, and metrics of run and wait times.

Only the API is used. The project sets up the SDK that processes and exports the data. Names follow
the semantic conventions for messaging; see docs/howto/trace-jobs.md.
"""

from __future__ import annotations

import time
from contextvars import ContextVar, Token
from typing import Any, ClassVar, NamedTuple
from uuid import UUID

from django.utils.module_loading import import_string
from opentelemetry import context, metrics, propagate, trace
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode

from stoker.jobs.failures import Failure
from stoker.jobs.outcomes import Cancelled, Failed, Outcome, Retried
from stoker.jobs.results import Result
from stoker.jobs.running import Running

from .base import Reporter

SYSTEM = {"messaging.system": "stoker"}
ENQUEUE = {"messaging.operation.name": "enqueue", "messaging.operation.type": "create"}
PROCESS = {"messaging.operation.name": "run", "messaging.operation.type": "process"}
BUCKETS_SECONDS = (
    0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10,
    30, 60, 300, 900, 3600,
)  # fmt: skip
"""Bounds of the histograms of times. The first line is from the semantic conventions; the second is
for jobs, which take longer than messages."""
NANOSECONDS = 1_000_000_000

Attributes = dict[str, Any]


class _Begun(NamedTuple):
    """A running attempt."""

    span: Span
    token: Token[Any]
    at: float
    """Start in monotonic seconds."""


_begun: ContextVar[_Begun | None] = ContextVar("stoker_opentelemetry", default=None)


class OpenTelemetryReporter(Reporter):
    """Reports to the tracer and meter providers of the project.

    Args:
        new_trace: whether each run is a separate trace that links to the enqueue, and not a part of
            the enqueue's trace. Useful for jobs that run much later.
        set_up: dotted path of a function without arguments that sets up the SDK. It is called when
            a process of a cluster starts, because the SDK's threads do not survive a fork. None =
            the project sets it up elsewhere.
    """

    never_waits: ClassVar[bool] = True

    def __init__(self, *, new_trace: bool = False, set_up: str | None = None) -> None:
        self._set_up = None if set_up is None else import_string(set_up)
        self._begins_traces = new_trace
        self._tracer = trace.get_tracer("stoker")
        meter = metrics.get_meter("stoker")
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Jobs that were enqueued."
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Attempts at jobs that were begun."
        )
        self._duration = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "How long attempts at jobs ran.",
            explicit_bucket_boundaries_advisory=BUCKETS_SECONDS,
        )
        self._waited = meter.create_histogram(
            "stoker.job.wait.duration",
            "s",
            "From enqueue to the start of the first attempt, whatever the job waited for.",
            explicit_bucket_boundaries_advisory=BUCKETS_SECONDS,
        )

    def begin(self, role: str) -> None:
        if self._set_up is not None:
            self._set_up()

    # -- enqueue ----------------------------------------------------------------------------------

    def on_enqueue(self, task: Any, job_id: UUID, metadata: dict[str, str]) -> None:
        place = {**SYSTEM, "messaging.destination.name": task.queue_name}
        with self._tracer.start_as_current_span(
            f"enqueue {task.queue_name}",
            kind=SpanKind.PRODUCER,
            attributes={
                **place,
                **ENQUEUE,
                "messaging.message.id": str(job_id),
                "stoker.task": task.module_path,
            },
        ):
            propagate.inject(metadata)
        self._sent.add(1, {**place, **ENQUEUE, "stoker.task": task.module_path})

    # -- run --------------------------------------------------------------------------------------

    def on_start(self, running: Running, result: Result[Any]) -> None:
        measured = _measured(running.queue, running.task)
        self._consumed.add(1, measured)
        if running.attempt == 1 and result.enqueued_at and result.started_at:
            seconds = (result.started_at - result.enqueued_at).total_seconds()
            self._waited.record(max(0.0, seconds), measured)
        sent = propagate.extract(running.metadata)
        span = self._start(sent, running.queue, _told(running.job_id, running.attempt, measured))
        token = context.attach(trace.set_span_in_context(span, sent))
        _begun.set(_Begun(span, token, time.monotonic()))

    def on_end(self, running: Running, result: Result[Any], outcome: Outcome) -> None:
        begun = _begun.get()
        if begun is None:
            return
        _begun.set(None)
        measured = {**_measured(running.queue, running.task), "stoker.outcome": outcome.kind}
        if isinstance(outcome, Failed | Retried):
            measured["error.type"] = outcome.fault.exception_class
        self._duration.record(time.monotonic() - begun.at, measured)
        _conclude(begun.span, outcome)
        context.detach(begun.token)
        begun.span.end()

    # -- lost attempts ----------------------------------------------------------------------------

    def on_failure(self, failure: Failure) -> None:
        """Record an exception on the span. If the worker was lost with its span, create a new
        one."""
        begun = _begun.get()
        if begun is not None:
            if failure.exception is not None:
                begun.span.record_exception(failure.exception)
            return
        measured = _measured(failure.queue, failure.task)
        told = _told(failure.job_id, failure.attempt, measured)
        sent = propagate.extract(failure.package.metadata if failure.package else {})
        started_at = failure.started_at or failure.finished_at
        span = self._start(sent, failure.queue, told, started_at)
        fault = failure.fault
        error = {"exception.type": fault.exception_class, "exception.message": fault.message}
        told_at = round(failure.finished_at * NANOSECONDS)
        span.add_event("exception", error, timestamp=told_at)
        outcome = (Failed if failure.is_final else Retried).kind
        span.set_attributes({"stoker.outcome": outcome, "error.type": fault.exception_class})
        span.set_status(Status(StatusCode.ERROR, fault.in_one_line))
        span.end(told_at)
        measured |= {"stoker.outcome": outcome, "error.type": fault.exception_class}
        self._duration.record(max(0.0, failure.finished_at - started_at), measured)

    def _start(
        self,
        sent: context.Context,
        queue: str,
        attributes: Attributes,
        started_at: float | None = None,
    ) -> Span:
        """Start the span of an attempt.

        Args:
            sent: the context that was stored in the job's package.
        """
        origin = trace.get_current_span(sent).get_span_context()
        return self._tracer.start_span(
            f"run {queue}",
            context=context.Context() if self._begins_traces else sent,
            kind=SpanKind.CONSUMER,
            links=[Link(origin)] if origin.is_valid else [],
            attributes=attributes,
            start_time=None if started_at is None else round(started_at * NANOSECONDS),
        )

    def flush(self, seconds: float) -> None:
        for provider in (trace.get_tracer_provider(), metrics.get_meter_provider()):
            flush = getattr(provider, "force_flush", None)  # the SDK has it, the API has not
            if flush is not None:
                flush(round(seconds * 1000))


def _conclude(span: Span, outcome: Outcome) -> None:
    span.set_attribute("stoker.outcome", outcome.kind)
    if isinstance(outcome, Failed | Retried):
        span.set_attribute("error.type", outcome.fault.exception_class)
        span.set_status(Status(StatusCode.ERROR, outcome.fault.in_one_line))
    elif isinstance(outcome, Cancelled):
        span.set_attribute("stoker.reason", outcome.reason)


def _measured(queue: str, task: str) -> Attributes:
    """Return the attributes of metrics, without values that differ for each job."""
    return {**SYSTEM, **PROCESS, "messaging.destination.name": queue, "stoker.task": task}


def _told(job_id: UUID, attempt: int, measured: Attributes) -> Attributes:
    return {**measured, "messaging.message.id": str(job_id), "stoker.attempt": attempt}
