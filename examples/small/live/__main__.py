"""``python -m examples.small.live``: serves the page until Ctrl-C."""

import signal
import sys
from wsgiref.simple_server import make_server

from examples.small.stage import begin, running_cluster


def main() -> None:
    begin("live", "examples.small.live.settings")
    from django.contrib.staticfiles.handlers import StaticFilesHandler
    from django.core.wsgi import get_wsgi_application

    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.default_int_handler)
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8000
    site = StaticFilesHandler(get_wsgi_application())
    with make_server("127.0.0.1", port, site) as server, running_cluster():
        print(f"Open http://127.0.0.1:{server.server_port}/ and press Ctrl-C to end.", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("Ended.")


if __name__ == "__main__":
    main()
