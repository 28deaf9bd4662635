"""A port of its own for who scrapes: one page, plain HTTP."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from django.db import connections
from django.utils.crypto import constant_time_compare

from stoker.events import tell

PATH = "/metrics"
AGAIN_SECONDS = 5.0
"""How often it is tried to have a port that another cluster of this host has."""
PATIENCE_SECONDS = 10.0
"""How long a client may take to say what it wants."""

Scrape = Callable[[str], tuple[bytes, str]]


def serve(address: str, port: int, token: str, scrape: Scrape) -> None:
    """Answer in a thread of its own until this process ends.

    Raises:
        OSError: that address cannot be had, whoever has the port.
    """
    first = _bind(address, port, token, scrape)
    threading.Thread(
        target=_serve, args=(first, address, port, token, scrape), name="metrics", daemon=True
    ).start()


def _serve(
    server: ThreadingHTTPServer | None, address: str, port: int, token: str, scrape: Scrape
) -> None:
    while server is None:
        time.sleep(AGAIN_SECONDS)
        server = _bind(address, port, token, scrape)
    server.serve_forever()


def _bind(address: str, port: int, token: str, scrape: Scrape) -> ThreadingHTTPServer | None:
    """None = another has the port now."""
    try:
        server = ThreadingHTTPServer((address, port), _handler(token, scrape))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return None
    tell("metrics_served", address=address, port=port)
    return server


def _handler(token: str, scrape: Scrape) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = PATIENCE_SECONDS

        def do_GET(self) -> None:
            if self.path.partition("?")[0] != PATH:
                self._answer(404, f"There is only {PATH} here.\n".encode())
            elif token and not self._is_known():
                self._answer(401, b"Send the header Authorization: Bearer TOKEN.\n")
            else:
                self._tell()

        def _tell(self) -> None:
            try:
                text, content_type = scrape(self.headers.get("Accept", ""))
            finally:
                connections.close_all()  # those of this thread, which is there for this only
            self._answer(200, text, content_type)

        def _is_known(self) -> bool:
            scheme, _, given = self.headers.get("Authorization", "").partition(" ")
            return scheme.lower() == "bearer" and constant_time_compare(given.strip(), token)

        def _answer(self, status: int, text: bytes, content_type: str = "text/plain") -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            """One line for every scrape helps nobody."""

    return Handler
