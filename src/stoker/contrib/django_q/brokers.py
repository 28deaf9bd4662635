"""``django_q.brokers``: access to a queue by its name, without a connection to a broker."""

from __future__ import annotations

from stoker import queues
from stoker.inspect.queue_depths import queues as depths

from . import conf
from .results import queue_size


class Queue:
    """One queue of the shim's backend.

    Args:
        list_key: its name; None = the queue of this process's cluster.
    """

    def __init__(self, list_key: str | None = None) -> None:
        self.list_key = conf.queue(list_key)

    def queue_size(self) -> int:
        """Return the number of waiting jobs."""
        return queue_size(self)

    def lock_size(self) -> int:
        """Return the number of running or claimed jobs."""
        return sum(one.running for one in depths(conf.settings()) if one.name == self.list_key)

    def purge_queue(self) -> int:
        """Cancel all waiting jobs. Return their number."""
        return queues.clear(self.list_key, backend=conf.alias()).done

    delete_queue = purge_queue

    def ping(self) -> bool:
        """Return whether the store answers. Raises BrokerUnavailable if it does not."""
        depths(conf.settings())
        return True

    def info(self) -> str:
        """Return the broker's URL."""
        return conf.settings().broker


def get_broker(list_key: str | None = None) -> Queue:
    """Return the queue of that name."""
    return Queue(list_key)
