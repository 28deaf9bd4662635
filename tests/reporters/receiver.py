"""HTTP servers that receive and parse what real SDKs send: Sentry, Rollbar, OTLP."""

import gzip
import json
import socket
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.cluster.clusters import wait_for


@dataclass
class Received:
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes

    # Parsed once: tests that wait look at all requests again and again.

    @cached_property
    def items(self) -> list[tuple[str, dict[str, Any]]]:
        """The items of an envelope to Sentry, each with its type."""
        return list(_items(self.body))

    @cached_property
    def spans(self) -> list[dict[str, Any]]:
        message = ExportTraceServiceRequest.FromString(self.body)
        scopes = [scope for one in message.resource_spans for scope in one.scope_spans]
        return [_span(span) for scope in scopes for span in scope.spans]

    @cached_property
    def points(self) -> dict[Any, dict[str, Any]]:
        """The data points, by process, metric and set of attributes."""
        found: dict[Any, dict[str, Any]] = {}
        for one in ExportMetricsServiceRequest.FromString(self.body).resource_metrics:
            pid = _attributes(one.resource.attributes).get("process.pid")
            for metric in (metric for scope in one.scope_metrics for metric in scope.metrics):
                for point in _points(metric):
                    found[pid, metric.name, str(point["attributes"])] = point
        return found


@dataclass
class Receiver:
    """A server with a port of its own, and the requests that it received."""

    port: int = 0
    requests: list[Received] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    # -- Sentry -----------------------------------------------------------------------------------

    @property
    def dsn(self) -> str:
        return f"http://key@127.0.0.1:{self.port}/1"

    def sentry(self, kind: str) -> list[dict[str, Any]]:
        """Return the items of this type from all envelopes: "event", "transaction", "check_in"."""
        found = []
        for request in list(self.requests):
            if request.path.endswith("/envelope/"):
                found += [item for name, item in request.items if name == kind]
        return found

    # -- Rollbar ----------------------------------------------------------------------------------

    def rollbar(self) -> list[dict[str, Any]]:
        """Return the data of each item."""
        bodies = [one.body for one in list(self.requests) if one.path.endswith("/item/")]
        return [json.loads(body)["data"] for body in bodies]

    # -- OpenTelemetry ----------------------------------------------------------------------------

    def spans(self) -> list[dict[str, Any]]:
        found = []
        for request in list(self.requests):
            if request.path == "/v1/traces":
                found += request.spans
        return found

    def points(self) -> list[dict[str, Any]]:
        """Return the newest data point of each metric, process and set of attributes."""
        found: dict[Any, dict[str, Any]] = {}
        for request in list(self.requests):
            if request.path == "/v1/metrics":
                found |= request.points
        return list(found.values())

    def wait_for(self, condition: Callable[[], Any], what: str = "") -> Any:
        """Wait for a result of the condition and return it."""
        wait_for(condition, lambda: f"it did not come: {what}\n{self.told()}")
        return condition()

    def told(self) -> str:
        paths = Counter(one.path for one in self.requests)
        ids = [one["contexts"]["trace"].get("data") for one in self.sentry("transaction")]
        return f"{paths}\n{ids}"


def _items(body: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    """Parse an envelope: a header line, then pairs of an item's header and its payload."""
    _, _, rest = body.partition(b"\n")
    while rest.strip():
        line, _, rest = rest.partition(b"\n")
        header = json.loads(line)
        length = header.get("length")
        if length is None:
            payload, _, rest = rest.partition(b"\n")
        else:
            payload, rest = rest[:length], rest[length:].lstrip(b"\n")
        if header["type"] in ("event", "transaction", "check_in"):
            yield header["type"], json.loads(payload)


def _span(span: Any) -> dict[str, Any]:
    return {
        "name": span.name,
        "kind": span.kind,
        "trace_id": span.trace_id.hex(),
        "span_id": span.span_id.hex(),
        "parent_id": span.parent_span_id.hex(),
        "links": [(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
        "attributes": _attributes(span.attributes),
        "events": [(event.name, _attributes(event.attributes)) for event in span.events],
        "is_error": span.status.code == 2,
        "seconds": (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
    }


def _points(metric: Any) -> Iterator[dict[str, Any]]:
    kind = metric.WhichOneof("data")
    for point in getattr(metric, kind).data_points:
        told = {"name": metric.name, "unit": metric.unit, "kind": kind}
        value = {"count": point.count, "sum": point.sum} if kind == "histogram" else {}
        if kind == "sum":
            value = {"value": point.as_int or point.as_double}
        yield {**told, **value, "attributes": _attributes(point.attributes)}


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Run a server that accepts everything."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            encoding = self.headers.get("Content-Encoding", "")
            if encoding == "gzip":
                body = gzip.decompress(body)
            elif encoding == "deflate":
                body = zlib.decompress(body)
            receiver.requests.append(Received(self.path, dict(self.headers), body))
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    receiver.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def silence() -> Iterator[int]:
    """Give the port of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as server:
        yield server.getsockname()[1]
