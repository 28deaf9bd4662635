"""Moto's SQS as a server, with six changes.

- Its clock cannot be advanced, but the times it is compared with can: a request to
  ``/stoker-test/?prefix=test-&seconds=10`` makes the messages of these queues that much older.
- Its threads may lose a message that is sent while another is deleted. So it answers one request at
  a time.
- It delivers messages older than their retention. No test waits for 14 days.
- Therefore a long poll consists of short ones, a new one whenever a message may have come.
- It has a thread for each connection, also for those whose client was lost silently, until it has
  no descriptor left and hangs. So it closes connections on which nothing comes for a while.
- It does not answer clients that have hung up. A client that waits too long asks again, so that a
  busy server would be asked more and more.
"""

from __future__ import annotations

import io
import json
import logging
import select
import socket
import threading
import time
from collections.abc import Iterable
from typing import Any
from urllib.parse import parse_qs

PATH = "/stoker-test/"
IDLE_SECONDS = 60.0
"""Clients open another connection if theirs was closed."""
LOOK_SECONDS = 0.5
"""Time between two short polls: a message may become visible or due without a request."""


class Wrapped:
    """Moto's application with these changes."""

    def __init__(self, application: Any) -> None:
        self._application = application
        self._turn = threading.Condition()

    def __call__(self, environment: dict[str, Any], start: Any) -> Iterable[bytes]:
        """Answer one request."""
        if environment["PATH_INFO"] == PATH:
            return self._be_older(environment, start)
        body = environment["wsgi.input"].read(int(environment.get("CONTENT_LENGTH") or 0))
        wait_seconds = 0.0
        if environment.get("HTTP_X_AMZ_TARGET", "").endswith(".ReceiveMessage"):
            asked = json.loads(body)
            wait_seconds = float(asked.pop("WaitTimeSeconds", 0))
            body = json.dumps({**asked, "WaitTimeSeconds": 0}).encode()
        until = time.monotonic() + wait_seconds
        while True:
            begun: list[Any] = []
            with self._turn:
                if _has_hung_up(environment["werkzeug.socket"]):
                    start("408 Request Timeout", [("Content-Length", "0")])
                    return [b""]
                answer = self._ask(environment, body, begun)
                is_over = b'"Messages"' in answer or time.monotonic() >= until
                if not is_over and begun[0].startswith("200"):
                    self._turn.wait(min(LOOK_SECONDS, max(0.0, until - time.monotonic())))
                    continue
                if not wait_seconds:
                    self._turn.notify_all()
            start(*begun)
            return [answer]

    def _ask(self, environment: dict[str, Any], body: bytes, begun: list[Any]) -> bytes:
        asked = {
            **environment,
            "wsgi.input": io.BytesIO(body),
            "CONTENT_LENGTH": str(len(body)),
        }
        return b"".join(self._application(asked, lambda *told: begun.extend(told[:2])))

    def _be_older(self, environment: dict[str, Any], start: Any) -> Iterable[bytes]:
        given = parse_qs(environment["QUERY_STRING"])
        with self._turn:
            if "seconds" in given:
                _advance(given["prefix"][0], float(given["seconds"][0]))
            self._turn.notify_all()
        start("204 No Content", [("Content-Length", "0")])
        return [b""]


def _has_hung_up(connection: socket.socket) -> bool:
    watched = select.poll()
    watched.register(connection, select.POLLIN)
    try:
        return bool(watched.poll(0)) and not connection.recv(1, socket.MSG_PEEK)
    except ConnectionError:
        return True


def main(port: int, idle_seconds: float = IDLE_SECONDS) -> None:
    """Serve until killed."""
    from moto.moto_server.werkzeug_app import (
        DomainDispatcherApplication,
        MotoRequestHandler,
        create_backend_app,
    )
    from moto.sqs.models import SQSBackend
    from werkzeug.serving import run_simple

    # Moto counts all messages of the queue for each one that it delivers.
    SQSBackend.is_message_valid_based_on_retention_period = lambda *_: True
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    application: Any = Wrapped(DomainDispatcherApplication(create_backend_app))
    handler: Any = MotoRequestHandler
    handler.protocol_version = "HTTP/1.1"
    handler.timeout = idle_seconds
    run_simple("127.0.0.1", port, application, threaded=True, request_handler=handler)


def _advance(prefix: str, seconds: float) -> None:
    from moto.sqs.models import sqs_backends

    for regions in list(sqs_backends.values()):
        for backend in list(regions.values()):
            for queue in list(backend.queues.values()):
                if queue.name.startswith(prefix):
                    for message in list(queue._messages):
                        message.visible_at -= seconds * 1000
                        message.delayed_until -= seconds * 1000
