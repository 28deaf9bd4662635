"""Serves the sample feeds on loopback: good, slow, flaky and broken ones."""

import gzip
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SAMPLES = Path(__file__).resolve().parents[1] / "samples"

SLOW_SECONDS = {"glacier-notes.xml": 3}
FAILS_FIRST = {"harbour-news.xml": 2}
MOVED = {"old-birdwatch.xml": "birdwatch.xml"}
GZIPPED = {"mountain-weather.xml"}
GONE = {"closed-blog.xml"}
"""Names without a file: the server answers 404."""


class SampleServer(ThreadingHTTPServer):
    """Serves the files of one folder: ``with SampleServer() as server: server.url(name)``.

    Args:
        folder: where the files are.
        in_haste: whether the slow ones answer at once.
    """

    daemon_threads = True

    def __init__(self, folder: Path = SAMPLES, *, in_haste: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = {path.name: path for path in folder.glob("*.xml")}
        self.slow_seconds = {} if in_haste else SLOW_SECONDS
        self.requests: Counter[str] = Counter()
        self.closing = threading.Event()

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{name}"

    def urls(self) -> list[str]:
        """Return the address of every sample. A feed that has moved has its old address."""
        names = (set(self.files) | set(MOVED) | GONE) - set(MOVED.values())
        return [self.url(name) for name in sorted(names)]

    def __enter__(self) -> "SampleServer":
        threading.Thread(target=self.serve_forever, args=[0.05], daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self.shutdown()
        self.server_close()

    def handle_error(self, *_: object) -> None:
        """Ignore clients that have closed the connection."""


class _Handler(BaseHTTPRequestHandler):
    server: SampleServer

    def do_GET(self) -> None:
        name = self.path.lstrip("/")
        self.server.requests[name] += 1
        self.server.closing.wait(self.server.slow_seconds.get(name, 0))
        if name in MOVED:
            self.answer(301, b"", Location=f"/{MOVED[name]}")
        elif self.server.requests[name] <= FAILS_FIRST.get(name, 0):
            self.answer(500, b"Something went wrong.")
        elif name not in self.server.files:
            self.answer(404, b"There is no such feed.")
        elif name in GZIPPED:
            packed = gzip.compress(self.server.files[name].read_bytes())
            self.answer(200, packed, **{"Content-Encoding": "gzip"})
        else:
            self.answer(200, self.server.files[name].read_bytes())

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        # No charset, because only the XML declaration names the encoding.
        self.send_header("Content-Type", "application/xml" if status == 200 else "text/plain")
        self.send_header("Content-Length", str(len(body)))
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in the library
        """Write no log, because the demo uses the terminal."""
