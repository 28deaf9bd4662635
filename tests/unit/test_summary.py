"""The summary of `make test`: failed and skipped tests, and the time."""

import json
from pathlib import Path

import pytest

from tests.processor_time import used_seconds
from tests.summary import read_results, show_summary

pytestmark = pytest.mark.unit

TESTS = """
<testsuites><testsuite>
<testcase classname="tests.unit.test_summary" name="test_a[x@y]" time="2.5">
  <properties><property name="processor_seconds" value="1.25"/></properties>
</testcase>
<testcase classname="tests.unit.test_summary.TestB" name="test_b" time="1">
  <failure message="assert 1 == 2&#10; more"/>
</testcase>
<testcase classname="tests.unit.test_summary" name="test_c" time="0">
  <skipped message="no chromium"/>
</testcase>
<testcase classname="" name="gw1" time="0">
  <error message="collection failure"/>
</testcase>
</testsuite></testsuites>
"""


@pytest.fixture
def report(tmp_path: Path) -> Path:
    """Write nox's report of three parts: one with tests, one with a command, one skipped."""
    sessions = [
        {"name": "sqlite", "result": "failed", "duration": 4.0, "reason": None},
        {"name": "demo", "result": "failed", "duration": 1.0, "reason": "exit code 1"},
        {"name": "mariadb", "result": "skipped", "duration": 0, "reason": "mariadb: not there"},
    ]
    path = tmp_path / "parts.json"
    path.write_text(json.dumps({"result": 0, "sessions": sessions}))
    (tmp_path / "sqlite.xml").write_text(TESTS.strip())
    (tmp_path / "sqlite.json").write_text(json.dumps({"processor_seconds": 3.5}))
    return path


def test_summary_lists_skips_and_then_failures_with_their_reasons(
    report: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    show_summary(read_results(report), wall=6, processor=5)
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    here = "tests/unit/test_summary.py"
    assert f"sqlite: {here}::TestB::test_b: assert 1 == 2" in lines
    assert "sqlite: gw1: collection failure" in lines
    assert "demo: exit code 1" in lines
    assert "1  no chromium (sqlite)" in lines
    assert "1  mariadb: not there (mariadb)" in lines
    assert lines.index("Skipped:") < lines.index("Failed:")
    assert lines[-1] == "1 passed, 3 failed, 2 skipped in 6 s (5 s of processor time)"


def test_time_is_added_up_by_module(report: Path) -> None:
    sqlite = read_results(report)[0]
    time = sqlite.modules["tests/unit/test_summary.py"]
    assert (time.wall, time.processor) == (3.5, 1.25)
    assert (sqlite.time.wall, sqlite.time.processor) == (4.0, 3.5)


def test_processor_time_grows_with_work() -> None:
    before = used_seconds()
    while used_seconds() < before + 0.05:
        pass
