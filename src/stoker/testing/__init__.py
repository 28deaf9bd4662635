"""Helpers for tests of projects that use Stoker: run jobs, and inspect enqueued ones.

::

    drain()                  run the waiting jobs in this process and in the test's transaction
    with inline():           run jobs as soon as they are enqueued
    enqueued()               return the waiting jobs
    fire_due(timedelta(days=1))   fire the ticks of schedules that are due until then
    assert_enqueued(task, args=..., after=...)       and assert_not_enqueued(task, ...)
    with assert_enqueues(task, count=2):
    class MyTests(StokerTestMixin, TestCase):        the same as methods

Jobs take the same path as in production: sealed, stored, claimed, opened, executed, recorded. Only
the processes and the pauses between attempts are left out. pytest has fixtures of the same names:
``stoker_drain``, ``stoker_inline``, ``stoker_enqueued``.
"""

from .assertions import assert_enqueued, assert_enqueues, assert_not_enqueued
from .case import StokerTestMixin
from .inline import inline
from .running import Drained, Ran, drain
from .ticking import declare, fire_due
from .waiting import Enqueued, enqueued

__all__ = [
    "Drained",
    "Enqueued",
    "Ran",
    "StokerTestMixin",
    "assert_enqueued",
    "assert_enqueues",
    "assert_not_enqueued",
    "declare",
    "drain",
    "enqueued",
    "fire_due",
    "inline",
]
