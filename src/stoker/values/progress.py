"""How far something has come that takes its time, told to whoever shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[int, int | None], None]

_listener: ContextVar[Listener | None] = ContextVar("stoker_long_work", default=None)


def come_so_far(done: int, total: int | None = None) -> None:
    """Tell how much is done; of how much, where that is known. Costs nothing if nobody listens."""
    listener = _listener.get()
    if listener is not None:
        listener(done, total)


@contextmanager
def told_to(listener: Listener) -> Iterator[None]:
    """Let this be told of what is done inside."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
