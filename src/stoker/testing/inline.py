"""Inline mode: run jobs as soon as they are enqueued and committed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from django.db import connections, transaction

from stoker.compat import TaskResultDoesNotExist, task_signals

from .running import Drained, JobRunner


@contextmanager
def inline(backend: str = "default") -> Iterator[Drained]:
    """Run jobs as soon as they are enqueued: ``with inline(): ...``, or ``@inline()``.

    Due jobs run in this process, thread and transaction, one after another. Jobs that they enqueue
    run after them. Failed attempts are retried at once. Deferred jobs wait; run them by
    ``drain(include_deferred=True)``.

    Inside ``transaction.atomic()`` jobs run when the outermost block ends, and not at all if it is
    rolled back. Blocks around ``inline()`` itself, such as a TestCase's, do not count.

    Args:
        backend: an alias in ``TASKS``.

    Returns:
        The attempts made so far; see ``drain``. The results that ``enqueue`` returns are refreshed.
    """
    line = _InlineRun(backend)
    task_signals.task_enqueued.connect(line.on_enqueue, weak=False)
    try:
        with line.told_of_commits():
            yield line.ran
    finally:
        task_signals.task_enqueued.disconnect(line.on_enqueue)
    line.end()


class _InlineRun:
    """The jobs of one ``inline()``."""

    def __init__(self, backend: str) -> None:
        self.ran = Drained()
        self._backend = backend
        self._runner = JobRunner(backend)
        self._here = threading.local()
        self._errors: list[BaseException] = []
        self._is_waiting_for_commit = False
        self._outer_blocks = {one: len(one.atomic_blocks) for one in connections.all()}

    def on_enqueue(self, sender: Any, task_result: Any, **_: Any) -> None:
        """Handle Django's signal. Errors are kept and raised later, because Django would only log
        them here."""
        if task_result.backend != self._backend or self._is_busy:
            return
        if alias := self._open_block():
            self._is_waiting_for_commit = True
            transaction.on_commit(self.settle, using=alias)
        else:
            self.settle()
            self._refresh(task_result)

    @contextmanager
    def told_of_commits(self) -> Iterator[None]:
        """Notice the end of the outermost block by the release of its savepoint.

        Inside a test's transaction nothing is ever committed.
        """
        with ExitStack() as stack:
            for connection in connections.all():
                stack.enter_context(self._told_of_savepoints(connection))
            yield

    def settle(self) -> None:
        """Run the due jobs, unless they are being run already or a block is still open."""
        if self._is_busy or self._open_block():
            return
        self._is_waiting_for_commit = False
        self._here.is_busy = True
        try:
            self.ran += self._runner.run()
        except Exception as error:  # noqa: BLE001 - raised at the end, where the test sees it
            self._errors.append(error)
        finally:
            self._here.is_busy = False

    def end(self) -> None:
        """Run jobs whose commit was not noticed, and raise the first kept error."""
        if self._is_waiting_for_commit:
            self.settle()
        if self._errors:
            raise self._errors[0]

    @property
    def _is_busy(self) -> bool:
        return getattr(self._here, "is_busy", False)

    def _open_block(self) -> str | None:
        """Return the alias of a database with an open block that was opened after ``inline()`` and
        is not a TestCase's."""
        for connection in connections.all(initialized_only=True):
            since = connection.atomic_blocks[self._outer_blocks.get(connection, 0) :]
            if any(not getattr(block, "_from_testcase", False) for block in since):
                return str(connection.alias)
        return None

    @contextmanager
    def _told_of_savepoints(self, connection: Any) -> Iterator[None]:
        release = connection.savepoint_commit

        def release_and_settle(sid: str) -> None:
            release(sid)
            if self._is_waiting_for_commit:
                self.settle()

        before = vars(connection).get("savepoint_commit")
        connection.savepoint_commit = release_and_settle
        try:
            yield
        finally:
            if before is None:
                del connection.savepoint_commit
            else:
                connection.savepoint_commit = before

    def _refresh(self, task_result: Any) -> None:
        try:
            task_result.refresh()
        except TaskResultDoesNotExist:
            pass  # KEEP_RESULTS says so
        except Exception as error:  # noqa: BLE001 - raised at the end, as above
            self._errors.append(error)
