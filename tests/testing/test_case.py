"""The mixin in Django's test cases."""

from __future__ import annotations

import pytest
from django.db import transaction
from django.test import SimpleTestCase, TestCase, TransactionTestCase, override_settings

from stoker.models import Job
from stoker.testing import StokerTestMixin

from tests.app import tasks as others
from tests.testing import tasks


class Methods(StokerTestMixin, SimpleTestCase):
    """Checks that both test cases below share."""

    databases = {"default"}

    def enqueue_and_look(self) -> None:
        with self.assertEnqueues(others.add, 1, args=[1, 2]):
            others.add.enqueue(1, 2)
        self.assertEnqueued(others.add, kwargs={}, count=1)
        self.assertNotEnqueued(tasks.note)
        with pytest.raises(AssertionError, match=r"No job of tests\.testing\.tasks\.note waits"):
            self.assertEnqueued(tasks.note)
        assert [job.call for job in self.enqueued()] == ["tests.app.tasks.add(1, 2)"]
        assert self.enqueued(tasks.note) == []
        self.drain().check()
        assert self.enqueued() == []
        with self.inline() as ran, transaction.atomic():
            tasks.note.enqueue("one")
        assert len(ran) == 1


class InATestCase(Methods, TestCase):
    """In a transaction that is rolled back."""

    @classmethod
    def setUpTestData(cls) -> None:
        tasks.note.enqueue("of the class")

    def test_mixin_works_in_test_case(self) -> None:
        assert self.drain(queues=["mail"]) == []
        (ran,) = self.drain()
        assert ran.args == ("of the class",)
        self.enqueue_and_look()

    def test_each_test_has_its_own_jobs(self) -> None:
        assert [job.args for job in self.enqueued()] == [("of the class",)]
        assert Job.objects.count() == 1


class InATransactionTestCase(Methods, TransactionTestCase):
    """With real commits."""

    def test_mixin_works_in_transaction_test_case(self) -> None:
        self.enqueue_and_look()


@override_settings(
    TASKS={
        "default": {"BACKEND": "django_tasks.backends.dummy.DummyBackend"},
        "second": {"BACKEND": "stoker.backend.StokerBackend", "OPTIONS": {"CLUSTER": "second"}},
    }
)
class OfAnotherBackend(StokerTestMixin, TestCase):
    """A class can name another backend of TASKS."""

    stoker_backend = "second"

    def test_mixin_uses_the_named_backend(self) -> None:
        with self.assertEnqueues(tasks.note, 1):
            tasks.note.using(backend="second").enqueue("one")
        self.assertEnqueued(tasks.note, count=1)
        with self.inline():
            tasks.note.using(backend="second").enqueue("two")
        assert tasks.seen == ["one", "two"]
        assert self.drain() == []
