"""Keep tests that share a cluster, or another expensive thing, in one process of pytest-xdist.

Its own `--dist=loadgroup` appends the group to the node id of a test, which has no effect with
pytest 9.2: each process then starts every cluster. So our scheduler finds the group by the path.
"""

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

SHARED_BY_FOLDER = {"browser", "reporters"}
"""The tests of these folders share one cluster, one site or one receiver."""
SHARED_BY_MODULE = {"cluster", "test_ironmq", "test_schema", "test_tidy"}
"""Folders in which the tests of a module share one, and single modules: tidy tests share what they
have parsed."""


def group_of(nodeid: str) -> str:
    """Return the name of the tests that run in one process. Other tests are groups of their own."""
    path = nodeid.partition("::")[0].removeprefix("tests/").removesuffix(".py")
    folder, _, module = path.rpartition("/")
    if folder in SHARED_BY_FOLDER:
        return folder
    return path if SHARED_BY_MODULE & {folder, module} else nodeid


class GroupScheduling(LoadScopeScheduling):
    """Hands each group to the next process that has nothing to do."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)

    def remove_node(self, node: WorkerController) -> str | None:
        """Return the test that a process was running when it died; None if it ended in good order.

        Its other tests go to other processes. pytest-xdist 3.8 would also hand out the test that
        killed it, and the groups that have ended, on which a process hangs (its issues 1323 and
        1371).
        """
        if self.collection is None:  # it died before the tests were handed out
            self.registered_collections.pop(node, None)
        groups = self.assigned_work.pop(node)
        left = [
            (name, one) for name in groups for one, is_over in groups[name].items() if not is_over
        ]
        for name, nodeid in left[1:]:
            self.workqueue.setdefault(name, {})[nodeid] = False
        for other in self.nodes if left else ():
            self._reschedule(other)
        return left[0][1] if left else None

    def _reschedule(self, node: WorkerController) -> None:
        # A process that replaces a dead one has to collect its tests first. pytest-xdist 3.8 ends
        # with a KeyError if another process dies meanwhile (its issues 1189 and 1362).
        if node in self.registered_collections:
            super()._reschedule(node)


@pytest.hookimpl(optionalhook=True)  # `-p no:xdist` is allowed
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> GroupScheduling:
    return GroupScheduling(config, log)
