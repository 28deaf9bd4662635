"""Clean-up after a task's function has ended, before its outcome is reported."""

from __future__ import annotations


class Aftercare:
    """Nothing, where a test or a script runs a job. A worker has its own."""

    def leave_forked_child(self) -> None:
        """Called in the thread of the event loop as soon as an async task has ended."""

    def after_sync(self, besides: str | None) -> None:
        """Called in the thread of a sync task, whether it returned or raised.

        Args:
            besides: the database whose transaction goes on, as the task is atomic.

        Raises:
            TransactionLeftOpen: the task ended inside a transaction; that is rolled back.
        """

    def before_async(self) -> int:
        """Called before an async task begins. Returns what ``after_async`` needs."""
        return 0

    async def after_async(self, before: int) -> None:
        """Async version of ``after_sync``, for a task on the event loop."""
