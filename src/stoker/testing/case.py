"""A mixin with the test helpers as methods."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, ClassVar

from . import assertions
from .inline import inline
from .running import Drained, drain
from .waiting import Enqueued, enqueued


class StokerTestMixin:
    """Mixin for ``django.test.TestCase`` and ``TransactionTestCase``.

    ::

        class OrderTests(StokerTestMixin, TestCase):
            def test_pays(self):
                self.client.post("/orders/1/pay/")
                self.assertEnqueued(send_receipt, args=[1])
                self.drain().check()
    """

    stoker_backend: ClassVar[str] = "default"
    """Alias in ``TASKS``."""

    def drain(self, **options: Any) -> Drained:
        """See ``stoker.testing.drain``."""
        return drain(self.stoker_backend, **options)

    def inline(self) -> AbstractContextManager[Drained]:
        """See ``stoker.testing.inline``."""
        return inline(self.stoker_backend)

    def enqueued(self, task: Any = None, **options: Any) -> list[Enqueued]:
        """See ``stoker.testing.enqueued``."""
        return enqueued(task, **self._of_backend(options))

    def assertEnqueued(self, task: Any, **wanted: Any) -> list[Enqueued]:  # noqa: N802 - as unittest has it
        """See ``stoker.testing.assert_enqueued``."""
        return assertions.assert_enqueued(task, **self._of_backend(wanted))

    def assertNotEnqueued(self, task: Any, **wanted: Any) -> None:  # noqa: N802 - as unittest has it
        """See ``stoker.testing.assert_not_enqueued``."""
        assertions.assert_not_enqueued(task, **self._of_backend(wanted))

    def assertEnqueues(  # noqa: N802 - as unittest has it
        self, task: Any, count: int | None = None, **wanted: Any
    ) -> AbstractContextManager[list[Enqueued]]:
        """See ``stoker.testing.assert_enqueues``."""
        return assertions.assert_enqueues(task, count, **self._of_backend(wanted))

    def _of_backend(self, options: dict[str, Any]) -> dict[str, Any]:
        return {"backend": self.stoker_backend, **options}
