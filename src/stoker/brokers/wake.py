"""What a pusher sleeps on."""

from __future__ import annotations

from abc import ABC, abstractmethod


class Wake(ABC):
    """Something a pusher can sleep on until a job may have come. Polling stays the correct path."""

    max_sleep_seconds: float | None = None
    """Sleep no longer than this: the source has to be asked, it doesn't call. Another value may
    hold after each time that it was asked."""

    tells_all = False
    """Whether nothing comes without its telling: then one look each time is enough."""

    def fileno(self) -> int | None:
        """A file descriptor that becomes readable, or None."""
        return None

    @abstractmethod
    def is_due(self) -> bool:
        """Whether something may have come since the last call. Never blocks, never raises."""

    def close(self) -> None:
        """Give the resources back."""


class NoWake(Wake):
    """Nothing to sleep on but time."""

    def is_due(self) -> bool:
        return False
