"""Concurrent jobs in one process each have their own span and scope."""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import pytest
import sentry_sdk
from django.test import override_settings
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from stoker.brokers.contract import Delivery
from stoker.conf import settings_for
from stoker.jobs.execute import Executor
from stoker.jobs.outcomes import Attempted, Failed, Retried, Succeeded
from stoker.jobs.package import JobOptions, Package, sealer_for
from stoker.jobs.running import Running
from stoker.reporters.desk import desk
from stoker.values.ids import new_job_id

pytestmark = pytest.mark.unit

MANY = 16
exporter = InMemorySpanExporter()


@pytest.fixture
def events() -> Iterator[list[Any]]:
    """The events for Sentry. Its integrations patch Django permanently, so they are off."""
    provider = trace.get_tracer_provider()
    if not isinstance(provider, TracerProvider):  # it can be set only once in a process
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        trace.set_tracer_provider(provider)
    exporter.clear()
    sent: list[Any] = []
    options = {
        "dsn": "http://key@127.0.0.1:9/1",
        "default_integrations": False,
        "auto_enabling_integrations": False,
        "traces_sample_rate": 1.0,
        "before_send": lambda event, _: sent.append(event),
        "before_send_transaction": lambda event, _: sent.append(event),
    }
    sentry_sdk.init(**options)  # type: ignore[arg-type] # a TypedDict would be asked for
    reporters = {"sentry": {"report_retries": True}, "opentelemetry": {"new_trace": True}}
    entry = {"BACKEND": "stoker.backend.StokerBackend", "OPTIONS": {"REPORTERS": reporters}}
    with override_settings(TASKS={"default": entry}):
        assert not desk.problems
        yield sent
    sentry_sdk.init(default_integrations=False, auto_enabling_integrations=False)


def delivery(task: str, *args: Any, attempts: int = 1, **metadata: str) -> Delivery:
    job_id = new_job_id()
    options = JobOptions(max_attempts=attempts)
    package = Package(
        job_id, f"tests.app.reported.{task}", args, {}, "default", 0, time.time(), options, metadata
    )
    data = sealer_for(settings_for()).seal(package)
    return Delivery(job_id, 1, data, "default", 0, 1, 0)


def run(*deliveries: Delivery) -> list[Attempted]:
    """Run all concurrently: sync tasks in threads, async tasks on one event loop."""
    executor = Executor(settings_for(), worker_id="me", limit=lambda _: nullcontext())

    async def all_of_them() -> list[Attempted]:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(MANY) as pool:

            async def one(delivery: Delivery) -> Attempted:
                opened = executor.open(delivery)
                assert isinstance(opened, Running)
                if opened.found.is_async:
                    return await executor.run_opened_async(opened)
                return await loop.run_in_executor(pool, executor.run_opened, opened)

            return await asyncio.gather(*map(one, deliveries))

    return asyncio.run(all_of_them())


def test_each_job_runs_in_its_own_span(events: list[Any]) -> None:
    deliveries = [delivery(task) for task in ("span_id", "span_id_later") for _ in range(MANY)]
    told = {}
    for one in run(*deliveries):
        assert isinstance(one.outcome, Succeeded)
        value = sealer_for(settings_for()).open_value(one.outcome.value)
        told[str(one.delivery.job_id)] = value
    spans = {
        span.attributes["messaging.message.id"]: format(span.context.span_id, "016x")  # type: ignore[index,union-attr] # they are there
        for span in exporter.get_finished_spans()
    }
    assert told == spans
    assert len({*told.values()}) == 2 * MANY
    assert not trace.get_current_span().get_span_context().is_valid, "no span is left open"


def test_each_error_is_reported_with_its_own_job(events: list[Any]) -> None:
    wanted, deliveries = {}, []
    for order in map(str, range(MANY)):
        for task in ("fail", "fail_later"):
            one = delivery(task, order, "x")
            deliveries.append(one)
            wanted[str(one.job_id)] = f"no such order: {order}"
    assert all(isinstance(one.outcome, Failed) for one in run(*deliveries))
    errors = [event for event in events if "exception" in event]
    told = {
        event["contexts"]["stoker"]["job_id"]: event["exception"]["values"][-1]["value"]
        for event in errors
    }
    assert told == wanted
    assert len(errors) == 2 * MANY


def test_reported_retries_are_warnings(events: list[Any]) -> None:
    (one,) = run(delivery("fail", "A-1", "x", attempts=3, **{"stoker.workflow": "abc"}))
    assert isinstance(one.outcome, Retried)
    (event,) = [event for event in events if "exception" in event]
    assert event["level"] == "warning"
    assert event["tags"]["stoker.workflow"] == "abc"
    assert event["contexts"]["stoker"]["is_final"] is False


def test_new_trace_links_to_the_enqueue(events: list[Any]) -> None:
    sent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    run(delivery("span_id", traceparent=sent))
    (span,) = exporter.get_finished_spans()
    assert span.parent is None
    (link,) = span.links
    assert format(link.context.trace_id, "032x") in sent
    assert span.context is not None
    assert span.context.trace_id != link.context.trace_id
