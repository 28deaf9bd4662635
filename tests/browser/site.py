"""The shop's site in a process of its own: ASGI by uvicorn, or WSGI."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.clusters import ROOT, environment_of_commands, wait_for

ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+")
ASGI = (
    "-m", "uvicorn", "--factory", "django.core.asgi:get_asgi_application", "--port", "0",
    "--lifespan", "off", "--no-access-log",
)  # fmt: skip
WSGI = ("-m", "tests.browser.site")


@contextmanager
def running_site(folder: Path, arguments: tuple[str, ...] = ASGI) -> Iterator[str]:
    """Run a site and give its address."""
    log = folder / "site.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env=environment_of_commands(),
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        wait_for(lambda: ADDRESS.search(log.read_text()), log.read_text)
        found = ADDRESS.search(log.read_text())
        assert found is not None
        yield found.group()
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:  # a stream of events is still open
            process.kill()
            process.wait()
    assert "Traceback" not in log.read_text(), log.read_text()


def serve() -> None:
    """Serve WSGI with a thread for each request."""
    from socketserver import ThreadingMixIn
    from wsgiref.simple_server import WSGIServer, make_server

    import django
    from django.core.wsgi import get_wsgi_application

    class Server(ThreadingMixIn, WSGIServer):
        daemon_threads = True

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings.browser")
    django.setup()
    with make_server("127.0.0.1", 0, get_wsgi_application(), Server) as server:
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    serve()
