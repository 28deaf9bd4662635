"""What processes do while the broker outside the database cannot be reached.

Screens and commands show what the database knows: they read within ``do_without_broker``. There a
broker that does not answer counts as empty, and the screen says so. Everywhere else the same call
raises BrokerUnavailable. Processes that enqueue leave their jobs in the outbox (``RelayPause``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import MethodType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from stoker.conf import Settings
from stoker.exceptions import BrokerUnavailable
from stoker.signals import tell

if TYPE_CHECKING:
    from .contract import Broker

T = TypeVar("T")


class BrokerOutage:
    """Whether a broker did not answer while a screen was read."""

    error: BrokerUnavailable | None = None
    broker: Broker | None = None
    """The broker that did not answer. It is not asked again for the same screen."""

    @property
    def sentence(self) -> str:
        """What is not shown, and why; "" = the broker has answered, or was not asked."""
        if self.error is None:
            return ""
        return (
            f"The broker does not answer: {str(self.error).rstrip('.')}. This is what the database "
            "knows: jobs that only the broker has are not shown, and other unfinished jobs may be "
            "shown as ready."
        )


_outage: ContextVar[BrokerOutage | None] = ContextVar("outage", default=None)


@contextmanager
def do_without_broker() -> Iterator[BrokerOutage]:
    """Within this block, let a broker that does not answer count as empty."""
    outage = BrokerOutage()
    token = _outage.set(outage)
    try:
        yield outage
    finally:
        _outage.reset(token)


def read_or_default(call: Callable[..., T], default: Any, *args: Any) -> T:
    """Call a method of a broker that reads. Within ``do_without_broker`` return ``default`` if the
    broker is outside the store and does not answer."""
    outage = _outage.get()
    if outage is None:
        return call(*args)
    broker = cast("Broker", cast("MethodType", call).__self__)
    if broker.capabilities.transactional:
        return call(*args)
    if broker is not outage.broker:
        try:
            return call(*args)
        except BrokerUnavailable as error:
            outage.error, outage.broker = error, broker
    return cast("T", default)


def no_info(settings: Settings) -> dict[str, Any]:
    """Return what to show in place of ``Broker.info`` if the broker does not answer."""
    return {"broker": settings.broker.partition(":")[0], "server": "does not answer"}


def outage_error() -> BrokerUnavailable | None:
    """Return the error of a broker that did not answer within ``do_without_broker``, and so may
    have jobs that the database does not know. None = it answered, or was not asked."""
    outage = _outage.get()
    return None if outage is None else outage.error


SHORTEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 2.0, 60.0
"""Shortest and longest pause after a failed relay. The pause is longer if the attempt took
longer."""
PAUSE_PER_SECOND = 20.0


class RelayPause:
    """Whether this process has just failed to relay jobs to the broker. For a while it leaves new
    ones in the outbox, to the schedulers, so that web requests and the monitor do not wait."""

    def __init__(self) -> None:
        self._until = 0.0

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._until

    def begin(self, error: Exception, asked_at: float) -> None:
        """Begin the pause, and log the error of the relay that began at ``asked_at``, in monotonic
        seconds."""
        now = time.monotonic()
        pause_seconds = max(SHORTEST_PAUSE_SECONDS, PAUSE_PER_SECOND * (now - asked_at))
        self._until = now + min(pause_seconds, LONGEST_PAUSE_SECONDS)
        tell("relay_put_off", error=error)
