"""Tests that share a cluster run in one process of pytest-xdist."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.groups import group_of

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import os
import time
from pathlib import Path
import pytest

@pytest.mark.parametrize("number", range(6))
def test_worker(number):
    names = Path("workers of " + __name__)
    with names.open("a") as file:
        file.write(os.environ["PYTEST_XDIST_WORKER"] + "\\n")
    while len(set(names.read_text().split())) < WORKERS:
        time.sleep(0.01)
"""


KILLED = """
import os
import time
from pathlib import Path
import pytest

def wait_for(worker):
    while not Path(worker).exists():
        time.sleep(0.01)

def pytest_collection_modifyitems():
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    Path(worker or "controller").touch()
    if worker == "gw2":  # replaces the first that was killed
        wait_for("gw3")
"""
KILLING = """
import os
import pytest
from conftest import wait_for

@pytest.mark.parametrize("number", range(20))
def test_worker(number):
    worker = os.environ["PYTEST_XDIST_WORKER"]
    if worker == "gw1":
        wait_for("gw2")
    if worker in ("gw0", "gw1"):
        os._exit(9)
"""


def run_tests_in(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the tests in this folder in two processes. Print each failure once, without a summary."""
    (folder / "pytest.ini").touch()
    command = [sys.executable, "-m", "pytest", "-n2", "-rN", "-p", "xdist", "-p", "tests.groups"]
    # The other plugins take a second to load, in each of up to five processes.
    no_others = {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        [*command, "tests"],
        cwd=folder,
        env={**os.environ, **no_others},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("nodeid", "group"),
    [
        ("tests/cluster/test_cli.py::test_a[a/b::c]", "cluster/test_cli"),
        ("tests/cluster/test_log.py::TestA::test_b", "cluster/test_log"),
        ("tests/reporters/test_reports.py::test_a", "reporters"),
        ("tests/integration/test_ironmq.py::TestA::test_b", "integration/test_ironmq"),
        ("tests/unit/test_bar.py::test_a", "tests/unit/test_bar.py::test_a"),
    ],
)
def test_group_is_found_by_the_path(nodeid: str, group: str) -> None:
    assert group_of(nodeid) == group


def test_tests_of_a_group_run_in_one_process(tmp_path: Path) -> None:
    """Others are spread over both: they wait for each other."""
    for folder, workers_of_module in (("cluster", 1), ("unit", 2)):
        module = tmp_path / "tests" / folder / f"test_{folder}.py"
        module.parent.mkdir(parents=True)
        module.write_text(f"{TESTS}\nWORKERS = {workers_of_module}\n")
    done = run_tests_in(tmp_path)
    assert done.returncode == 0, done.stdout
    workers = {file.name: set(file.read_text().split()) for file in tmp_path.glob("workers of *")}
    assert len(workers["workers of test_cluster"]) == 1
    assert len(workers["workers of test_unit"]) == 2


def test_killed_workers_fail_one_test_each_and_others_go_on(tmp_path: Path) -> None:
    """The second one is killed while the process that replaces the first collects its tests."""
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "conftest.py").write_text(KILLED)
    (tests / "test_killed.py").write_text(KILLING)
    done = run_tests_in(tmp_path)
    assert done.returncode == 1, done.stdout
    assert "INTERNALERROR" not in done.stdout
    assert "2 failed, 18 passed" in done.stdout
    for worker in ("gw0", "gw1"):
        assert done.stdout.count(f"worker '{worker}' crashed while running") == 1
