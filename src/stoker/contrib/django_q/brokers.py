"""``django_q.brokers``: a queue, asked for by its name. There is nothing to be connected to."""

from __future__ import annotations

from stoker import queues
from stoker.inspect.queue_depths import queues as depths

from . import conf
from .results import queue_size


class Queue:
    """One queue of the backend that the shim uses.

    Args:
        list_key: its name; None = that of this process's cluster.
    """

    def __init__(self, list_key: str | None = None) -> None:
        self.list_key = conf.queue(list_key)

    def queue_size(self) -> int:
        """How many jobs wait."""
        return queue_size(self)

    def lock_size(self) -> int:
        """How many jobs run, or are about to."""
        return sum(one.running for one in depths(conf.settings()) if one.name == self.list_key)

    def purge_queue(self) -> int:
        """Cancel all jobs that wait. Returns how many."""
        return queues.clear(self.list_key, backend=conf.alias()).done

    delete_queue = purge_queue

    def ping(self) -> bool:
        """Whether the store answers. Raises BrokerUnavailable where it does not."""
        depths(conf.settings())
        return True

    def info(self) -> str:
        """Where jobs wait."""
        return conf.settings().broker


def get_broker(list_key: str | None = None) -> Queue:
    """The queue of that name."""
    return Queue(list_key)
