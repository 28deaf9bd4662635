"""For tests of projects that use Stoker: let jobs run, and look at what was enqueued.

::

    drain()                  what waits runs now, in this process and in the test's transaction
    with inline():           jobs run as soon as they are enqueued
    enqueued()               what waits
    fire_due(timedelta(days=1))   what schedules have until then is enqueued
    assert_enqueued(task, args=..., after=...)       and assert_not_enqueued(task, ...)
    with assert_enqueues(task, count=2):
    class MyTests(StokerTestMixin, TestCase):        the same as methods

Jobs take the way they always take: sealed, stored, claimed, opened, executed, finished. Only the
processes are left out, and waiting for the next attempt. pytest has fixtures of the same names:
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
