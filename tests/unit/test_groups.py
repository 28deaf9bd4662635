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
    (tmp_path / "pytest.ini").touch()
    command = [sys.executable, "-m", "pytest", "-n2", "-p", "tests.groups", "-p", "no:django"]
    done = subprocess.run(
        [*command, "tests"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    workers = {file.name: set(file.read_text().split()) for file in tmp_path.glob("workers of *")}
    assert len(workers["workers of test_cluster"]) == 1
    assert len(workers["workers of test_unit"]) == 2
