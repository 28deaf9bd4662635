"""Progress of long operations, reported to a listener."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[int, int | None], None]

_listener: ContextVar[Listener | None] = ContextVar("stoker_long_work", default=None)


def come_so_far(done: int, total: int | None = None) -> None:
    """Report the number of processed items, and the total if it is known. Does nothing without a
    listener."""
    listener = _listener.get()
    if listener is not None:
        listener(done, total)


@contextmanager
def told_to(listener: Listener) -> Iterator[None]:
    """Call ``listener``, and those of outer blocks, with the progress that is reported inside the
    block."""
    outer = _listener.get()

    def tell(done: int, total: int | None) -> None:
        listener(done, total)
        if outer is not None:
            outer(done, total)

    token = _listener.set(tell)
    try:
        yield
    finally:
        _listener.reset(token)
