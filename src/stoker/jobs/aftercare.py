"""Clean-up after a task's function has ended, before its outcome is reported."""

from __future__ import annotations

import asyncio

from .running import Running


class Aftercare:
    """Clean-up after a task. This base class does nothing; workers use a subclass."""

    def leave_forked_child(self) -> None:
        """Clean up in a process that the task has forked. Called in the event loop's thread as soon
        as an async task has ended."""

    def after_sync(self, besides: str | None) -> None:
        """Called in the thread of a sync task, after it returned or raised.

        Args:
            besides: the database whose transaction may stay open, because the task is atomic.

        Raises:
            TransactionLeftOpen: the task ended inside a transaction, which is rolled back.
        """

    def before_async(self) -> int:
        """Called before an async task begins. Return a value for ``after_async``."""
        return 0

    async def wait_for_calls(self, running: Running) -> None:
        """Wait for the calls that an async task has made in another thread. Called after the task
        raised an error or was interrupted. Cancelling a task does not end its calls."""

    async def after_async(self, before: int) -> None:
        """Async version of ``after_sync``, for a task on the event loop."""


async def raise_own_cancellation() -> None:
    """Raise CancelledError if code in the current asyncio task has cancelled that task and awaited
    nothing since. Otherwise the next await would raise it, whatever that waits for."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        await asyncio.sleep(0)
