"""Keep tests that share a cluster, or another expensive thing, in one process of pytest-xdist.

Its own `--dist=loadgroup` appends the group to the node id of a test, which has no effect with
pytest 9.2: each process then starts every cluster. So our scheduler finds the group by the path.
"""

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

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


@pytest.hookimpl(optionalhook=True)  # `-p no:xdist` is allowed
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> GroupScheduling:
    return GroupScheduling(config, log)
