"""A process that enqueues one job and says so: python -m tests.conformance.enqueuer URL"""

from __future__ import annotations

import sys

import django


def main(url: str) -> None:
    """Enqueue, wake, end."""
    django.setup()
    from stoker.brokers import broker_for
    from stoker.conf import Settings

    from tests.conformance.stands import message

    broker = broker_for(Settings(broker=url))
    broker.enqueue([message()])
    broker.wake_up(["default"])
    broker.close()


if __name__ == "__main__":
    main(sys.argv[1])
