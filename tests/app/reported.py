"""Tasks whose outcomes are reported, and reporters that fail."""

import asyncio
import logging
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from stoker import Retry, task
from stoker.exceptions import TaskCancelled
from stoker.reporters.base import Reporter


@task(max_attempts=1)
def succeed(first: int, second: int) -> int:
    return first + second


@task(max_attempts=1)
async def succeed_later(first: int) -> int:
    return first


@task(max_attempts=1)
def fail(order: str, password: str) -> None:
    raise ValueError(f"no such order: {order}")


@task(max_attempts=1, redact=["iban"])
def fail_with_secrets(iban: str, more: Any) -> None:
    copied = f"paid by {iban}"
    raise ValueError(len(copied))


@task(redact=["iban"])
def log_with_secrets(iban: str) -> None:
    logging.getLogger("shop").error("The bank refused it.", stack_info=True)


@task(max_attempts=1)
def fail_after_pop(account: dict[str, Any]) -> None:
    key = account.pop("api_key")
    raise ValueError(f"refused: {key}")


@task(max_attempts=2, backoff=0.1, takes_context=True)
def fail_once(context: Any) -> int:
    if context.attempt == 1:
        raise Retry(0.1)
    return int(context.attempt)


@task(max_attempts=1, timeout=0.2)
def take_too_long() -> None:
    time.sleep(60)


@task(max_attempts=1, timeout=0.2)
def ignore_the_time_out() -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        with suppress(BaseException):
            time.sleep(60)


@task(max_attempts=1)
def ignore_the_cancel(path: str) -> None:
    Path(path).touch()
    until = time.monotonic() + 600
    while time.monotonic() < until:
        with suppress(BaseException):
            time.sleep(60)


@task(max_attempts=2, backoff=0)
def fail_when_cancelled(path: str) -> None:
    Path(path).touch()
    try:
        time.sleep(600)
    except TaskCancelled as error:
        raise ValueError("it was cancelled") from error


@task(max_attempts=1)
def sleep(path: str, seconds: float) -> None:
    """Write the process id to a file, and sleep."""
    with open(path, "w") as file:  # noqa: PTH123 - as plain as can be
        file.write(str(os.getpid()))
    time.sleep(seconds)


@task(max_attempts=1)
def crash() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@task(max_attempts=1)
def enqueue_another(failing: bool) -> str:
    """Return the id of the job that this one enqueues."""
    return str((fail.enqueue("A-1", "x") if failing else succeed.enqueue(1, 2)).id)


class Broken(Reporter):
    """Raises in every hook."""

    def begin(self, role: str) -> None:
        raise RuntimeError("it is broken")

    def on_failure(self, failure: Any) -> None:
        raise RuntimeError("it is broken")

    def on_start(self, running: Any, result: Any) -> None:
        raise RuntimeError("it is broken")

    def on_end(self, running: Any, result: Any, outcome: Any) -> None:
        raise RuntimeError("it is broken")


class Stuck(Reporter):
    """Never returns from hooks that may wait."""

    def on_failure(self, failure: Any) -> None:
        time.sleep(3600)

    def flush(self, seconds: float) -> None:
        time.sleep(3600)


def set_up_telemetry() -> None:
    """Set up OpenTelemetry as a project would: the address is in OTEL_EXPORTER_OTLP_ENDPOINT."""
    resource = Resource.create({"service.name": "tests", "process.pid": os.getpid()})
    tracer_provider = TracerProvider(resource=resource)
    tracer_provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(tracer_provider)
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(), export_interval_millis=500)
    metrics.set_meter_provider(MeterProvider(resource=resource, metric_readers=[reader]))


@task(max_attempts=1)
def span_id() -> str:
    """Return the id of the span in which it runs."""
    time.sleep(0.01)
    return format(trace.get_current_span().get_span_context().span_id, "016x")


@task(max_attempts=1)
async def span_id_later() -> str:
    await asyncio.sleep(0.01)
    return format(trace.get_current_span().get_span_context().span_id, "016x")


@task(max_attempts=1)
async def fail_later(order: str, password: str) -> None:
    await asyncio.sleep(0.01)
    raise ValueError(f"no such order: {order}")
